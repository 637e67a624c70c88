"""For analysts: opens an export with its tables and views, and documents their columns."""
