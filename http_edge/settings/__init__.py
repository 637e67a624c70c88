"""All settings: typed, with unit, default and reason, and where they come from."""
