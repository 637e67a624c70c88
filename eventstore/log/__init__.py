"""The log itself: event types, codec, the port to a store, seals, and their verification."""
