"""A power cut at any time costs nothing that was answered."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from actors.core.commands import AcknowledgeMessages
from actors.core.replies import Done, MessageAccepted
from eventstore.log.codec import decode
from eventstore.log.errors import LogError
from eventstore.log.events import MessageQueued, MessagesRemoved
from eventstore.log.verify import Summary, verify
from eventstore.stores.open_log import open_log
from tests.crash import disk
from tests.crash.commands import introduced, introduction, message, submission
from tests.crash.conftest import Report
from tests.crash.disk import Operation, Said, Sync, Unsynced
from tests.crash.owner import Owner, replies_in

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]
MESSAGES = 12
TEXT_BYTES = 3_000
SEED = 1
STATES_MIN = 300
CHECKPOINT_BYTES = 100_000
CHECKPOINTS_MIN = 2


class Written(NamedTuple):
    """The disk before a process wrote to it, and what that did."""

    base: dict[str, bytes]
    done: list[Operation]


class Found(NamedTuple):
    """How many disks were looked at, and on how many an accepted message was missing."""

    states: int
    lost: int
    damaged: int


def write(directory: Path, *options: str) -> Written:
    """Accept messages, of which some are acknowledged, in a process that is traced."""
    directory.mkdir()
    dsn, trace = f"sqlite:{directory / 'log.db'}", directory.parent / f"{directory.name}.trace"
    with closing(open_log(dsn)):
        pass
    base = {path.name: path.read_bytes() for path in directory.iterdir()}
    with Owner(dsn, *options, prefix=[*disk.STRACE_WRITES, f"-o{trace}"]) as owner:
        assert introduced(owner.ask(*introduction()))
        waiting: list[str] = []
        for number in range(MESSAGES):
            replies = owner.ask(message(f"{number} ".ljust(TEXT_BYTES, ".")))
            assert replies is not None
            (reply,) = replies
            assert isinstance(reply, MessageAccepted)
            waiting.append(reply.message_id)
            if number % 3 == 2:
                acknowledged = AcknowledgeMessages([waiting.pop(0)])
                assert owner.ask(submission(f"acknowledge {number}", acknowledged)) == [Done()]
        assert owner.stop() == 0
    return Written(base, list(disk.operations(trace, directory)))


def cut_everywhere(written: Written, directory: Path, fates: Sequence[Unsynced]) -> Found:
    """Look at every disk that a power cut can leave, each one once."""
    chance = random.Random(SEED)  # noqa: S311 - a repeatable choice, not a secret
    seen: set[tuple[frozenset[tuple[str, bytes]], frozenset[str]]] = set()
    lost = damaged = 0
    for cut in range(len(written.done) + 1):
        done = written.done[:cut]
        known, gone = frozenset(accepted(done)), frozenset(acknowledged(done))
        for fate in fates:
            image = disk.after(written.base, done, fate, chance)
            files = frozenset((name, bytes(content)) for name, content in image.items())
            state = files, known | gone
            if state not in seen:
                seen.add(state)
                stored = stored_ids(image, directory / f"{len(seen)}")
                damaged += stored is None
                lost += stored is not None and not (known <= stored[0] and gone <= stored[1])
    return Found(len(seen), lost, damaged)


def accepted(done: Sequence[Operation]) -> Iterator[str]:
    """The ids of the messages that the process has said are durable, in their order."""
    for operation in done:
        if isinstance(operation, Said):
            for reply in replies_in(operation.data):
                if isinstance(reply, MessageAccepted):
                    yield reply.message_id


def acknowledged(done: Sequence[Operation]) -> list[str]:
    """The ids of the messages that the process has said are removed: the oldest."""
    said = [operation for operation in done if isinstance(operation, Said)]
    return list(accepted(done))[: sum(replies_in(one.data) == [Done()] for one in said)]


def stored_ids(image: disk.Image, directory: Path) -> tuple[set[str], set[str]] | None:
    """The ids of the messages that came into a log and left it after the power came back.

    None when it is damaged; it is, too, where a content is missing or was not erased.
    """
    directory.mkdir(parents=True)
    for name, content in image.items():
        (directory / name).write_bytes(content)
    try:
        with closing(open_log(f"sqlite:{directory / 'log.db'}")) as log:
            *findings, summary = verify(log)
            assert isinstance(summary, Summary)
            if findings:
                return None
            rows = log.read_log(limit=summary.position + 1)
            events = [decode(row.topic, row.state) for row in rows]
    except LogError:
        return None
    finally:
        shutil.rmtree(directory)
    removed = [event.message_ids for event in events if isinstance(event, MessagesRemoved)]
    queued = {event.message_id for event in events if isinstance(event, MessageQueued)}
    return queued, {message_id for ids in removed for message_id in ids}


def test_a_power_cut_at_any_time_loses_nothing_that_was_accepted(
    tmp_path: Path, report: Report
) -> None:
    written = write(tmp_path / "log")
    assert len(list(accepted(written.done))) == MESSAGES
    found = cut_everywhere(written, tmp_path / "cut", list(Unsynced))
    report(f"{found.states} disks after a cut, {found.lost} with a loss, {found.damaged} damaged")
    assert found.states >= STATES_MIN
    assert (found.lost, found.damaged) == (0, 0)


def test_a_power_cut_during_checkpoints_beside_the_writer_loses_nothing_either(
    tmp_path: Path, report: Report
) -> None:
    written = write(tmp_path / "log", "FULL", f"{CHECKPOINT_BYTES}", "0")
    answered = max(n for n, done in enumerate(written.done) if isinstance(done, Said))
    checkpoints = [d for d in written.done[:answered] if isinstance(d, Sync) and d.name == "log.db"]
    found = cut_everywhere(written, tmp_path / "cut", list(Unsynced))
    report(f"{found.states} disks after a cut, {found.lost} with a loss, {found.damaged} damaged")
    assert len(checkpoints) >= CHECKPOINTS_MIN
    assert found.states >= STATES_MIN
    assert (found.lost, found.damaged) == (0, 0)


def test_the_same_cuts_do_show_a_loss_when_commits_are_not_synced(
    tmp_path: Path, report: Report
) -> None:
    written = write(tmp_path / "log", "NORMAL")
    found = cut_everywhere(written, tmp_path / "cut", [Unsynced.NONE])
    report(f"{found.states} disks after a cut, {found.lost} with a loss, {found.damaged} damaged")
    assert found.lost > 0
