"""The projected tables, each a fold of the exported events in DataFrame operations."""
