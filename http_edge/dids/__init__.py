"""Resolve decentralized identifiers (DIDs): one module per method, and the resolver."""

from http_edge.dids.document import DidDocument, Fetch, signing_key_id

__all__ = ["DidDocument", "Fetch", "signing_key_id"]
