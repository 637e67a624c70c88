"""The seam of a log: who signed it, and what its sums tell apart."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from eventstore.log.codec import encode
from eventstore.log.errors import SeamRefused
from eventstore.log.event_log import Departure, LogRow, Snapshot
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.faults import Fault
from eventstore.log.public_key import PublicKey
from eventstore.log.seal import GENESIS, seal
from eventstore.log.seam import (
    Seam,
    Sum,
    row_entry,
    sign_seam,
    state_entry,
    stored_seam,
    verified_seam,
)
from eventstore.log.seam_check import SeamCheck
from eventstore.stores.open_log import open_log
from http_edge.crypto.signatures import public_key, sign

SEED = bytes(32)
KEY = PublicKey(public_key(SEED))
SIGN = partial(sign, SEED)
SEAM = Seam(mediator_did="did:web:mediator", position=3, left=2, signed_by=KEY.text)
ROW = LogRow(3, bytes(16), 2, "of-a-later-release.1", b"state")
STATE = Snapshot(2, 1, b"state")
OF_SEAL: dict[str, Any] = {"epoch": 1, "at_ms": 0, "window_ms": 0, "nonces": b""}
SEALED = encode(
    UUID(int=0), 1, seal([], [], partition="shard-0", previous=GENESIS, **OF_SEAL)
).state


@pytest.mark.parametrize(
    "other",
    [
        {"position": 4},
        {"stream": bytes(15) + b"\x01"},
        {"version": 3},
        {"topic": "of-a-later-release.2"},
        {"state": b"State"},
    ],
)
def test_a_sum_tells_rows_apart_by_every_column(other: dict[str, Any]) -> None:
    assert row_entry(replace(ROW, **other)) != row_entry(ROW)


def test_a_sum_tells_states_apart_by_stream_and_by_every_column() -> None:
    changed = ({"version": 3}, {"fold": 2}, {"state": b"State"})
    others = [state_entry(UUID(int=1), replace(STATE, **other)) for other in changed]
    assert len({state_entry(UUID(int=1), STATE), state_entry(UUID(int=2), STATE), *others}) == 5


def test_what_is_subtracted_from_a_sum_leaves_the_sum_of_the_others() -> None:
    whole = Sum().plus([b"a", b"b", b"a", b"c"])
    assert whole.minus([b"a", b"c"]) == Sum().plus([b"b", b"a"])
    assert whole.minus([b"a", b"b", b"c"]).number == 1


def test_a_seam_is_the_one_that_the_key_signed_as_a_seam() -> None:
    text = sign_seam(SEAM, SIGN)
    assert verified_seam(text, KEY) == SEAM
    said, signature = text.split("\n")
    assert KEY.verify(b"poste seam of a log\n" + said.encode(), bytes.fromhex(signature))
    for changed in (text.replace('"left":2', '"left":1'), said, f"{said}\nno digits"):
        with pytest.raises(SeamRefused, match="was not signed by"):
            verified_seam(changed, KEY)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"signed_by": "another"}, "was not signed by"),
        ({"format": 3}, "its format is 3"),
        ({"stayed": Sum(0, bytes(32))}, "its format is"),
    ],
)
def test_a_seam_of_another_key_or_format_is_refused_though_its_signature_holds(
    other: dict[str, Any], why: str
) -> None:
    with pytest.raises(SeamRefused, match=why):
        verified_seam(sign_seam(replace(SEAM, **other), SIGN), KEY)


def test_a_seam_of_an_earlier_release_has_whole_rows_up_to_its_position() -> None:
    said = json.loads(sign_seam(SEAM, SIGN).split("\n")[0])
    del said["whole_to"]
    text = json.dumps(said | {"format": 1})
    signed = f"{text}\n{SIGN(b'poste seam of a log' + chr(10).encode() + text.encode()).hex()}"
    assert verified_seam(signed, KEY).whole_to == SEAM.position


@pytest.mark.parametrize(
    ("before", "behind", "state", "why"),
    [
        ([1], 2, 0, None),
        ([1, 3], 4, 2, None),
        ([1, 3], 4, 1, "versions up to 2 have left, but its state is of version 1"),
        ([1, 3], 4, 0, "versions up to 2 have left, but its state is of version 0"),
        ([1], 3, 2, None),
        ([1], 3, 1, "versions up to 2 have left, but its state is of version 1"),
        ([], 1, 0, None),
        ([], 2, 0, "version 1 should stand here"),
        ([1, 2], 2, 0, "version 3 should stand here"),
        ([1, 1], 2, 0, "comes after version 1 of its stream"),
        ([2, 1], 3, 1, "comes after version 2 of its stream"),
    ],
)
def test_versions_that_left_are_in_the_state_that_replaces_them(
    tmp_path: Path, before: list[int], behind: int, state: int, why: str | None
) -> None:
    """Also where the mediator's key has signed another thing."""
    rows = [replace(ROW, position=version, version=version) for version in before]
    kept = [(UUID(bytes=ROW.stream), replace(STATE, version=state))] if state else []
    states = Sum().plus(state_entry(*one) for one in kept)
    seam = replace(SEAM, position=9, stayed=Sum().plus(map(row_entry, rows)), states=states)
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        log.let_leave(Departure(None, sign_seam(seam, SIGN), (), kept))
        check = SeamCheck(log, seam)
        found = [one for row in rows for one in check.take(row)]
        found += check.join({ROW.stream: replace(ROW, position=10, version=behind)})
        found += check.end()
    assert [one.explanation for one in found] == ([why] if why else [])


@pytest.mark.parametrize(
    ("state", "version", "why"),
    [
        (SEALED, 1, None),
        (SEALED, 2, "version 1 should stand here"),
        (b"no seal", 2, None),  # reported already
    ],
)
def test_the_seals_of_a_partition_that_the_seam_does_not_know_begin_with_the_first(
    tmp_path: Path, state: bytes, version: int, why: str | None
) -> None:
    row = LogRow(10, bytes(16), version, SEAL_TOPIC, state)
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        found = [*SeamCheck(log, SEAM).join({row.stream: row})]
    assert [one.explanation for one in found] == ([why] if why else [])


def test_a_seam_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        log.let_leave(Departure(None, "no seam", (), ()))
        assert stored_seam(log) is None


def test_a_row_and_a_state_in_place_of_those_that_were_signed_are_found(tmp_path: Path) -> None:
    first, stream = replace(ROW, version=1), UUID(int=0)
    states = Sum().plus([state_entry(stream, STATE)])
    seam = replace(SEAM, stayed=Sum().plus([row_entry(first)]), states=states)
    kept = [(stream, replace(STATE, state=b"another"))]
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        log.let_leave(Departure(None, sign_seam(seam, SIGN), (), kept))
        check = SeamCheck(log, seam)
        assert [*check.take(replace(first, state=b"another"))] == []
        found = [one.fault for one in check.end()]
    assert found == [Fault.WRONG_REST, Fault.MISSING_STATE]
