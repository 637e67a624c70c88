"""Send submissions and reads to hosts, and receive their pushes: outboxes, routes, subscribers."""
