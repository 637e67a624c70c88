"""Logs, request ids, measures and counts of refusals."""
