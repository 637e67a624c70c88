"""The rows that stay in a log for ever are those that the page about retention says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from actors.core import commands as c
from eventstore.log.event_log import EventLog
from eventstore.log.events import SEAL_TOPIC
from http_edge.server.archive_round import archive_once
from http_edge.settings.sections import Archive
from http_edge.settings.settings import Settings
from tests.export.acting import (
    AGENT,
    HOUR_S,
    ME,
    Act,
    Acting,
    acknowledge,
    connect_again,
    expire,
    keep_contract,
    publish,
    request_contract,
    set_device,
    set_rules,
    withdraw,
)
from tests.export.leaving import LATER_MS, log, settings_of
from tests.export.samples import whole_log
from tests.histories import MEDIATOR, contract
from tests.tidy.modules import ROOT

__all__ = ["log"]
PAGE: Final = ROOT / "deploy/docs/pages/operations/retention.md"
TIMES: Final = 3
_ROW: Final = re.compile(r"\| (.+?) \| (\d+) \| [\d,]+ \|")


def _renewed(acting: Acting, number: int) -> None:
    acting.register(acting.now_ms / 1000 + 90_000 + number)


def _contract(acting: Acting, number: int) -> None:
    stored = contract(ME, f"did:example:{number}", acting.now_ms / 1000 + 9_000)
    acting.ask(ME, ME, c.SaveContract(stored))


def _removed(acting: Acting, number: int) -> None:
    keep_contract(acting, number)
    acting.now_ms += 3 * HOUR_S * 1000
    expire(acting)


def _answered(acting: Acting, number: int) -> None:
    request_contract(acting, number)
    acknowledge(acting, 1)


def _published(acting: Acting, number: int) -> None:
    publish(acting, number)
    withdraw(acting, 1)


def _connected(acting: Acting, number: int) -> None:
    acting.connect(f"did:key:{number}")


def _erased(acting: Acting, number: int) -> None:
    acting.connect(f"did:key:{number}")
    for _ in range(4):
        acting.ask(MEDIATOR, f"did:key:{number}", c.EraseIdentity("operator", 1_000))


def _given_up(acting: Acting, number: int) -> None:
    key, claim = f"key-{number}", 1
    acting.ask(AGENT, AGENT, c.UpdateKeylist([c.ClaimedKey(key, claim)], []))
    acting.ask(AGENT, f"key:{key}", c.ClaimKey(AGENT))
    acting.ask(AGENT, AGENT, c.UpdateKeylist([], [key]))
    acting.ask(AGENT, f"key:{key}", c.ReleaseKey(AGENT, claim))


def _device(acting: Acting, number: int) -> None:
    set_device(acting, number + 1)


def _stated(acting: Acting, number: int) -> None:
    connect_again(acting, number + 1)
    set_rules(acting, number + 1)


def _used(acting: Acting, number: int) -> None:
    acting.ask(AGENT, f"invitation:once-{number}", c.UseInvitation(AGENT))


def _fetched(acting: Acting, _: int) -> None:
    acting.ask(MEDIATOR, AGENT, c.QueueEnvelopes("", [b"payload"]))
    given = c.DeliverMessages("phone", "pickup/2.0", 10, 100_000, 60_000)
    delivered = acting.ask(AGENT, AGENT, given).messages
    acting.ask(AGENT, AGENT, c.RemoveMessages([m.message_id for m in delivered], "acknowledged"))


ACTS: Final[dict[str, Act]] = {
    "a registration that is renewed until a later time": _renewed,
    "a contract, also one that has expired": _contract,
    "a contract that was removed": _removed,
    "a contract request that is answered": _answered,
    "a public event that is published and withdrawn": _published,
    "a DIDComm agent that connects": _connected,
    "the same, erased": _erased,
    "a recipient key that is registered and given up": _given_up,
    "a device for notifications that another one replaces": _device,
    "a connection, or rules of a queue, that others replace": _stated,
    "a single-use invitation that is used": _used,
    "a message that is queued, fetched and acknowledged": _fetched,
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path / "data", archive=Archive(pause_s=0, rows_age_s_min=0))


def _said() -> dict[str, int]:
    _, _, section = PAGE.read_text("utf-8").partition("## What stays for ever")
    return {name: int(rows) for name, rows in _ROW.findall(section)}


def _rows_left(settings: Settings, log: EventLog) -> int:
    """The rows of identities that are left once all have left that may."""
    archive_once(settings, is_checked=False, clock=lambda: LATER_MS)
    return sum(row.topic != SEAL_TOPIC for row in whole_log(log))


@pytest.mark.parametrize("what", ACTS)
def test_as_many_rows_stay_for_ever_as_the_page_says(
    settings: Settings, log: EventLog, what: str
) -> None:
    acting = Acting(log)
    _renewed(acting, 0)
    acting.connect(AGENT)
    ACTS[what](acting, 0)
    before = _rows_left(settings, log)
    for number in range(1, 1 + TIMES):
        ACTS[what](acting, number)
    assert _rows_left(settings, log) - before == TIMES * _said()[what]


def test_the_page_has_no_other_rows() -> None:
    assert _said().keys() == ACTS.keys()
