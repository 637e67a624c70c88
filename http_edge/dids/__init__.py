"""Resolve decentralized identifiers (DIDs): one module per method, and the resolver."""
