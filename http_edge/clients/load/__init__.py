"""A load on a running mediator: agents of either protocol, prepared messages, a closed loop.

The agents are ordinary clients: they register, write to each other and fetch waiting messages, as
any client may. Make messages before the clock runs. A refused message is counted by its code and
not sent again; any other request that meets a rate limit is repeated after a pause.
"""
