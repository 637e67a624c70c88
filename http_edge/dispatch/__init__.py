"""Asks actors and takes their pushes: outboxes, routes, listeners."""
