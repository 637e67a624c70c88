"""The pure core: commands, decisions, the fold of events, replies; no clock, no IO, no Ray."""
