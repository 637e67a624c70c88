"""Read models: indexed tables that are written in the transaction of an append."""
