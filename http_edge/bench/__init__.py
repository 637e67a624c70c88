"""The benchmark of a mediator: what it does in a second, how long it takes, what it costs.

The load comes from a process of its own (``load``) that parses no JSON and signs nothing while
the clock runs, so that it costs little of the machine that it shares with the server. Only
loopback addresses are taken: this is a measuring tool and no weapon.
"""
