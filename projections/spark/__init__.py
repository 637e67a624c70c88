"""Spark: its Java, its session, the exported events as a DataFrame, options of programs."""
