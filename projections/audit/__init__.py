"""Audits refusals, and messages that are not fetched, with Spark."""
