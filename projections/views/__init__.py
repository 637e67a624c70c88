"""SQL views of the exported log: what operators ask, in one text for Spark SQL and for DuckDB."""
