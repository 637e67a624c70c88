"""DIDComm mediation: envelopes, handshakes, keylists, forwards and every generation of pickup.

``http_endpoint`` takes messages over HTTP, ``sockets`` over WebSocket; both hand each message to
``inbound``, which unpacks it (``envelopes``), finds its protocol (``protocols``) and packs the
answer. ``delivery`` sends waiting messages to sockets, ``outbound`` to the endpoints of agents;
``push`` notifies devices. ``composition`` puts these parts together.
"""
