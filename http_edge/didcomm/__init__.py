"""DIDComm mediation: envelopes, handshakes, keylists, forwards and every generation of pickup.

``http_endpoint`` takes what arrives over HTTP, ``sockets`` what arrives over WebSocket; both hand
each message to ``inbound``, which unpacks it (``envelopes``), finds its protocol (``protocols``)
and packs the answer. ``delivery`` sends what waits to sockets, ``outbound`` to endpoints of agents.
``composition`` puts all of it together.
"""
