"""Accepts connections, bounds them, identifies the caller, routes requests."""
