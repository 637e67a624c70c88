"""Endpoints for operators: health, queues, identities in memory, shards and orders."""
