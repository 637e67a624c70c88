"""The projected tables: each a fold of the exported events as DataFrame operations."""
