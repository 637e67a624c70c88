"""Projections of the exported log, rebuilt apart from the live system."""
