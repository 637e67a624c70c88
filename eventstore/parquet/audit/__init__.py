"""Looks up what the log proves about one message or one identity, without Spark."""
