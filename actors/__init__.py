"""Identities as actors: a pure core, one loop that runs it, and Ray around the loop."""
