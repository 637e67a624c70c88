"""The Decentrl mediator protocol (DCTRL-0004, DCTRL-0007) at the edge."""
