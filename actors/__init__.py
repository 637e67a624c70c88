"""Identities as actors: a pure core, the host loop that runs it, and Ray around the loop."""
