"""Audits what the log says about messages, identities and refusals, with Spark."""
