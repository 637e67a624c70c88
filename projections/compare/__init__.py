"""Compares the memory of a running mediator with its exported log."""
