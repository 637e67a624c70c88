"""What is looked up of a message or an identity is what the log says, event by event."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eventstore.log import events as e
from eventstore.log.proof import ProvenMessage, check_proof
from eventstore.log.public_key import PublicKey
from eventstore.parquet.audit.lookup import Lookup
from eventstore.parquet.audit.records import (
    IdentityRecords,
    Record,
    identity_records,
    message_records,
)
from eventstore.parquet.opening import open_exports
from tests.histories import AGENTS, IDENTITIES, START_MS
from tests.projections.audited import SampleLog, ids_in, iso, key, sample
from tests.projections.exports import SIGNER
from tests.unit.cli.conftest import Run, run

__all__ = ["key", "run", "sample"]
APART = (
    e.MessageQueued,
    e.MessagesDelivered,
    e.MessagesRemoved,
    e.EventSaved,
    e.EventTagsUpdated,
    e.PublicEventPublished,
    e.PublicEventsDeleted,
    e.BatchSealed,
)
"""Shown by day, or not at all."""
ELSEWHERE = {
    *("position", "shard", "stream", "identity", "version", "type", "type_version"),
    *("recorded_at", "command", "state", "digest", "claims"),
    *("did", "owner_did", "by_did"),
}
"""Columns that are no details of an event: they say which one it is, or whose."""


def life(sample: SampleLog, message_id: str, until: int) -> list[tuple[Any, ...]]:
    """What is expected of a message; a seal covers what stands since the seal before it."""
    found: list[tuple[Any, ...]] = []
    open_rows: list[tuple[Any, ...]] = []
    for stored in sample.events:
        if isinstance(stored.event, e.BatchSealed):
            seal = (stored.event.partition, stored.position, stored.event.digest.hex())
            found += [(*row, *seal) for row in open_rows]
            open_rows = []
        elif message_id in ids_in(stored.event) and stored.position <= until:
            word = type(stored.event).__name__.removeprefix("Messages").removeprefix("Message")
            by = getattr(stored.event, "channel", getattr(stored.event, "reason", None))
            at = iso(stored.event.at_ms)
            open_rows.append((at, word.lower(), by, stored.version, stored.position))
    return found


def lives(sample: SampleLog, message_id: str, until: int) -> list[tuple[Any, ...]]:
    names = ("recorded_at", "event", "by", "version", "position")
    seal = ("seal_partition", "seal_position", "seal_digest")
    with looking_up(sample, until) as lookup:
        rows = message_records([lookup], message_id)
    return [tuple(row[name] for name in (*names, *seal)) for row in rows]


@contextmanager
def looking_up(sample: SampleLog, until: int) -> Iterator[Lookup]:
    [opened] = open_exports(str(sample.export)).parts
    with Lookup(opened, until) as lookup:
        yield lookup


def records_of(sample: SampleLog, did: str, until: int) -> IdentityRecords:
    with looking_up(sample, until) as lookup:
        return identity_records([lookup], did)


@pytest.mark.parametrize("part", [1, 2])
def test_the_life_of_a_message_is_shown_with_channels_reasons_and_seals(
    sample: SampleLog, part: int
) -> None:
    until = sample.last_position // part
    handed_out = Counter(i for s in sample.of(e.MessagesDelivered) for i in ids_in(s.event))
    [(often, deliveries)] = handed_out.most_common(1)
    acknowledged = next(
        ids_in(s.event)[0] for s in sample.of(e.MessagesRemoved) if s.identity in IDENTITIES
    )
    for message_id in {i for stored in sample.events for i in ids_in(stored.event)}:
        assert lives(sample, message_id, until) == life(sample, message_id, until)
    assert deliveries > 2
    words = [word for _, word, *_ in lives(sample, acknowledged, sample.last_position)]
    assert words == ["queued", "removed"]
    assert len(lives(sample, often, sample.last_position)) > deliveries
    assert lives(sample, "unknown", until) == []


def history_of(sample: SampleLog, did: str) -> list[int]:
    """Positions of what an identity did and was arguments, newest first."""
    owners: dict[str, str] = {}
    found = []
    for stored in sample.events:
        owner = stored.identity
        match stored.event:
            case e.KeyClaimed(key=key, owner_did=owner):
                owners[key] = owner
            case e.KeyReleased(key=key):
                owner = owners[key]
            case e.InvitationUsed(by_did=by):
                owner = by
            case _:
                pass
        if owner == did and not isinstance(stored.event, APART):
            found.append(stored.position)
    return found[::-1]


def traffic_of(sample: SampleLog, did: str, until: int) -> list[Record]:
    """How much of what by what, all on one day, with the sizes that the rows have."""
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for stored in sample.events:
        if stored.position > until:
            break
        found: list[tuple[str, str]] = []
        is_own = stored.identity == did
        match stored.event:
            case e.MessageQueued(sender_did=sender, protocol=protocol):
                found = [("sent", protocol)] * (sender == did) + [("queued", protocol)] * is_own
            case e.MessagesDelivered(channel=by):
                found = [("delivered", by)] * is_own
            case e.MessagesRemoved(reason=by):
                found = [("removed", by)] * is_own
            case e.EventSaved():
                found = [("saved", "")] * is_own
            case e.PublicEventPublished():
                found = [("published", "")] * is_own
            case _:
                pass
        for what in found:
            counts[what] += len(ids_in(stored.event)) or 1
            sizes[what] += sample.rows[stored.position]["size_bytes"] or 0
    return [
        {
            "day": iso(START_MS)[:10],
            "what": what,
            "by": by,
            "count": counts[what, by],
            "size_bytes": sizes[what, by] or None,
        }
        for what, by in sorted(counts)
    ]


def details_of(sample: SampleLog, position: int) -> dict[str, Any]:
    """The fields of an event, as the exported file has them."""
    row = sample.rows[position]
    return {n: value for n, value in row.items() if value is not None and n not in ELSEWHERE}


@pytest.mark.parametrize("part", [1, 2])
def test_an_identity_is_shown_by_what_it_did_and_by_its_messages(
    sample: SampleLog, part: int
) -> None:
    until = sample.last_position // part
    for did in (*IDENTITIES, *AGENTS):
        shown = records_of(sample, did, until)
        positions = [row["position"] for row in shown.history]
        assert positions == [one for one in history_of(sample, did) if one <= until]
        assert [row["details"] for row in shown.history] == [
            details_of(sample, position) for position in positions
        ]
        assert shown.traffic == traffic_of(sample, did, until)


def test_the_refused_commands_of_an_identity_are_summed_up_over_edges_and_periods(
    sample: SampleLog,
) -> None:
    [hers] = records_of(sample, IDENTITIES[0], sample.last_position).refused
    assert (hers["count"], hers["edges"]) == (5, 2)
    assert (hers["first_at"], hers["last_at"]) == (iso(60_000), iso(140_000))
    [agents] = records_of(sample, AGENTS[0], sample.last_position).refused
    assert (agents["command"], agents["reason"]) == ("keylist-update", "TIMESTAMP_OUT_OF_RANGE")
    assert records_of(sample, IDENTITIES[1], sample.last_position).refused == []


def test_tables_and_json_say_the_same(run: Run, sample: SampleLog) -> None:
    handed_out = Counter(i for s in sample.of(e.MessagesDelivered) for i in ids_in(s.event))
    often, deliveries = handed_out.most_common(1)[0]
    arguments = ["audit", "message", often, "--from", str(sample.export)]
    as_json = json.loads(run(*arguments, "--json").out)
    assert as_json["message"]["deliveries"] == deliveries
    assert [event["position"] for event in as_json["events"]] == [
        r[4] for r in life(sample, often, sample.last_position)
    ]
    as_text = run(*arguments).out
    for event in as_json["events"]:
        assert event["recorded_at"] in as_text
        assert event["seal_digest"] in as_text
    # As the log stood when it was queued, it waits.
    arguments += ["--as-of", str(as_json["events"][0]["position"]), "--json"]
    early = json.loads(run(*arguments).out)
    assert (early["message"]["state"], len(early["events"])) == ("waits", 1)


def test_a_message_that_was_found_is_proven_to_who_has_the_public_key_alone(
    run: Run, sample: SampleLog, key: str, tmp_path: Path
) -> None:
    message_id = next(i for s in sample.of(e.MessagesRemoved) for i in ids_in(s.event))
    file = tmp_path / "proof.json"
    arguments = ["audit", "message", message_id, "--from", str(sample.export), "--json"]
    for options in ([], ["--public-key", SIGNER.text]):
        shown = json.loads(run(*arguments, "--proof", str(file), *options).out)
        proven = check_proof(file.read_bytes(), SIGNER)
        assert isinstance(proven, ProvenMessage)
        assert [event["event"] for event in shown["events"]] == [p.event for p in proven.events]
        assert [event["seal_digest"] for event in shown["events"]] == [
            p.seal_digest.hex() for p in proven.events
        ]
        assert (shown["signed_by"], shown["key_is_trusted"]) == (SIGNER.text, bool(options))
    refused = run(*arguments, "--public-key", PublicKey(bytes(range(1, 33))).text)
    assert (refused.code, "signed by another key" in refused.err) == (4, True)
    assert "damaged" not in refused.err
    hidden = run(*arguments, "--proof", str(file), "--pseudonymise", key)
    assert (hidden.code, "needs the real names" in hidden.err) == (2, True)
    nowhere = run(*arguments, "--proof", str(tmp_path / "no" / "file"))
    assert (nowhere.code, "No such file" in nowhere.err) == (2, True)
