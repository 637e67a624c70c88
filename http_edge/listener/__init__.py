"""Accept connections, bound their number and memory, find the client address, route requests."""
