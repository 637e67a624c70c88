"""The pure core: commands, decisions, events applied to state, replies; no clock, IO, Ray."""
