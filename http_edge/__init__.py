"""The edge: HTTP, WebSocket, wire formats, signatures, the command line."""
