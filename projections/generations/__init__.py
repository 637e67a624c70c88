"""The rebuilt tables: Delta tables, and generations, which name the versions that go together."""
