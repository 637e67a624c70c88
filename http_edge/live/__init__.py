"""What a running mediator has in memory, written down beside its export to be compared with it."""
