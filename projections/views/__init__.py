"""SQL views of the exported log for operators' questions, in one text for Spark SQL and DuckDB."""
