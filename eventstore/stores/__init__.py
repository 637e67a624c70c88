"""The log on SQLite and on PostgreSQL: recorders, connections, import, restore."""
