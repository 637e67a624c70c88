"""Benchmarks of a mediator: what it does in a second, how long it takes, what it costs.

``python -m tests.bench NAME``; ``make bench`` runs those of both protocols. The load comes from a
process of its own (``load``) that signs nothing and parses only refusals while the clock runs, so
that it costs little of the machine that it shares with the server.
"""
