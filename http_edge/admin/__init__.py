"""What operators ask on loopback: health, queues, identities in memory, shards and orders."""
