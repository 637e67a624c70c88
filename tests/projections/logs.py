"""A log in which something of everything happens."""

from __future__ import annotations

from typing import Final

from actors.core import commands as c
from eventstore.log.event_log import EventLog
from eventstore.log.events import RefusedCommands
from tests import histories
from tests.histories import EDGE, START_MS, Act, History, random_script

LABEL: Final = '"><script>label()</script>\0\x1b[31m\uffff'
HOSTILE: Final = "did:key:<script>alert('did')</script>&quot;\" onload=\"x()$x^2$"
FORMULA: Final = "=HYPERLINK(1)"
PAYLOAD: Final = b"what only the recipient may read"
ENDPOINT: Final = "https://agent.example/in"


def fill(log: EventLog) -> None:
    """A random history of two protocols, a peer with evil names, and refused commands."""
    history = History(log)
    history.play(random_script(11, 120))
    ask = history._ask
    ask(
        HOSTILE, HOSTILE, c.Connect(c.Connection("did:peer:2.me", LABEL, ENDPOINT, [], "x/1.0", ""))
    )
    ask(HOSTILE, HOSTILE, c.GrantMediation())
    for _ in range(3):
        ask(histories.MEDIATOR, HOSTILE, c.QueueEnvelopes("", [PAYLOAD]))
    for _ in range(4):
        history.let_time_pass(Act(0, 0, 2, 0))
        ask(HOSTILE, HOSTILE, c.DeliverMessages("phone", "pickup/2.0", 2, 100_000, 1))
    refused = [
        RefusedCommands("didcomm", FORMULA, "not_connected", HOSTILE, 7, START_MS, START_MS + 1),
        RefusedCommands("decentrl", "", f"<b>{FORMULA}", "", 2, START_MS, START_MS + 1),
    ]
    edge = c.CountRefusals(EDGE, START_MS, history.now_ms, refused)
    ask(EDGE, f"edge:{EDGE}", edge)
    history.play(random_script(12, 220))
