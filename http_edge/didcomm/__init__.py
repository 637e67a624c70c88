"""DIDComm v1 mediation: envelopes, handshakes, keylists, forwards and every generation of pickup.

``front`` takes what arrives over HTTP, ``sockets`` what arrives over WebSocket; both hand each
message to ``conversation``, which unpacks it, finds the family of its type in ``families`` and
packs the answer.
"""
