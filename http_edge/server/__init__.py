"""Composition of a mediator: serve, edge processes, metrics, the export process, restore."""
