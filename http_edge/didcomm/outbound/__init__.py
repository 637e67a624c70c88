"""Outbound delivery: queued messages go to agents that have an endpoint of their own (RFC 0025).

The agent that connects names the endpoint, so every delivery passes the gates of ``destinations``;
a message stays in its queue until the endpoint has accepted it.
"""
