"""Outbound delivery of queued messages to agents that have an endpoint of their own (RFC 0025).

An agent names its endpoint when it connects, so every delivery passes the checks in
``destinations``. A message stays in its queue until the endpoint has accepted it.
"""
