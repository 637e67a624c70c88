"""Sign, encrypt, encode and strictly parse: Ed25519, X25519, AES-GCM, base64, JSON."""
