"""Outbound delivery: queued messages go to agents that have an endpoint of their own (RFC 0025).

Whoever connects names the endpoint, so every connection passes the gates of ``delivery``; a
message stays in its queue until the endpoint has accepted it.
"""
