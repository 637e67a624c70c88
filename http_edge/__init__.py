"""The edge: HTTP, WebSocket, wire formats, signatures, the command line.

A request comes through ``listener`` to ``decentrl`` or ``didcomm``, which check it with ``crypto``
and ``dids`` and send it through ``dispatch`` to the host that owns the identity; ``admin`` serves
operators. ``settings`` and ``telemetry`` are for all of these, and ``server`` puts them together.
``cli`` is the command ``poste``, and ``clients`` are the libraries for those at the other end.
"""
