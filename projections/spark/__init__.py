"""Spark: its Java and session, the exported events as a DataFrame, and options of programs."""
