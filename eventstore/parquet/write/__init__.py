"""Writes the log as Parquet files, one signed manifest for each step."""
