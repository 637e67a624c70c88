"""The append-only event log, its stores and its read models."""
