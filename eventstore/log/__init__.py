"""The log itself: event types, codec, the port, seals, and the proof that rows are as sealed."""
