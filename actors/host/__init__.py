"""The host: it loads, decides, appends, evolves and replies for the identities that it owns."""
