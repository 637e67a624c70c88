"""Bytes that are signed, sealed or strictly read: JSON, base64, Ed25519, X25519, AES-GCM."""
