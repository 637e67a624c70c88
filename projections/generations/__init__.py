"""The rebuilt tables: Delta tables, and the generations that say which versions belong together."""
