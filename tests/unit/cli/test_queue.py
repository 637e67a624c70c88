"""``poste queue``: queues with their owners, and an unknown DID named as one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from http_edge.admin.operators import QUEUES_MAX
from http_edge.server.exits import Exit
from http_edge.settings.limits import Limits
from tests.unit.cli.conftest import Run, answering, data_dir_of

DID = "did:decentrl:" + "z6MkotvgNfXbr1sXKFLDKkTZ4d7KRPRkio6qfwE31HSHPS27" * 3
QUEUE = {"did": DID, "messages": 2, "bytes": 9, "oldest_age_s": 1.5, "outbound": False}


def server(queues: list[dict[str, Any]], *, known: bool, **more: object) -> Any:
    answer = {"queues": queues, "known": known, "agent": None, **more}
    body = json.dumps(answer).encode()
    return answering({"/queues": (200, body), "/queues/purge": (200, body)})


@pytest.fixture
def empty() -> Iterator[str]:
    with server([], known=True) as listen:
        yield listen


def test_a_queue_is_shown_with_the_whole_did_of_its_owner(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with server([QUEUE], known=True) as listen:
        ran = run("queue", "show", DID, "--data-dir", data_dir_of(tmp_path, listen))
    assert (ran.code, ran.err) == (Exit.OK, "")
    assert DID in ran.out
    assert " 2 " in ran.out


@pytest.mark.parametrize("form", [["show"], ["show", "--json"], ["purge", "--yes"]])
def test_an_unknown_did_is_named_as_one(run: Run, tmp_path: Path, form: list[str]) -> None:
    with server([], known=False) as listen:
        ran = run("queue", *form, "did:x:stranger", "--data-dir", data_dir_of(tmp_path, listen))
    assert (ran.code, ran.out) == (Exit.FINDING, "")
    assert "this mediator knows no identity did:x:stranger" in ran.err


@pytest.mark.parametrize("form", [["show"], ["show", "--json"], ["purge"], ["purge", "--yes"]])
def test_another_did_of_an_account_is_refused_with_the_account(
    run: Run, tmp_path: Path, form: list[str]
) -> None:
    with server([], known=False, account="did:key:z6Mk") as listen:
        ran = run("queue", *form, "did:x:other", "--data-dir", data_dir_of(tmp_path, listen))
    assert (ran.code, ran.out) == (Exit.FINDING, "")
    assert "did:x:other belongs to the account of another DID" in ran.err
    assert "by its first DID: did:key:z6Mk" in ran.err


def test_a_did_that_speaks_for_another_account_is_shown_with_the_account(
    run: Run, tmp_path: Path
) -> None:
    with server([], known=True, account="did:key:z6Mk") as listen:
        ran = run("queue", "show", DID, "--data-dir", data_dir_of(tmp_path, listen))
    assert (ran.code, ran.err) == (Exit.OK, "")
    assert "in the queue of the account did:key:z6Mk" in ran.out


@pytest.mark.parametrize("form", [[], ["--yes"], ["--yes", "--json"]])
def test_a_did_that_speaks_for_another_account_is_not_purged_in_its_place(
    run: Run, tmp_path: Path, form: list[str]
) -> None:
    with server([], known=True, account="did:key:z6Mk") as listen:
        ran = run("queue", "purge", *form, DID, "--data-dir", data_dir_of(tmp_path, listen))
    assert (ran.code, ran.out) == (Exit.FINDING, "")
    assert "by its first DID: did:key:z6Mk" in ran.err


def test_a_purge_of_a_did_with_messages_of_its_own_names_the_account_of_its_agent(
    run: Run, tmp_path: Path
) -> None:
    with server([QUEUE], known=True, account="did:key:z6Mk", purged=2) as listen:
        ran = run("queue", "purge", "--yes", DID, "--data-dir", data_dir_of(tmp_path, listen))
    assert (ran.code, ran.err) == (Exit.OK, "")
    assert "2 messages removed" in ran.out
    assert "in the queue of the account did:key:z6Mk" in ran.out


@pytest.mark.thorough
def test_as_many_queues_are_shown_as_can_be_requested_however_long_their_dids_are(
    run: Run, tmp_path: Path
) -> None:
    longest = "did:x:" + "z" * (Limits().did_bytes_max - len("did:x:"))
    with server([QUEUE | {"did": longest}] * QUEUES_MAX, known=True) as listen:
        at = ("--limit", str(QUEUES_MAX), "--json", "--data-dir", data_dir_of(tmp_path, listen))
        ran = run("queue", "show", *at)
    assert (ran.code, ran.err) == (Exit.OK, "")
    assert ran.out.count(longest) == QUEUES_MAX


def test_an_empty_queue_is_no_fault(run: Run, tmp_path: Path, empty: str) -> None:
    ran = run("queue", "show", DID, "--data-dir", data_dir_of(tmp_path, empty))
    assert (ran.code, ran.err) == (Exit.OK, "")
    assert " none\n" in ran.out


def test_a_mediator_with_another_token_names_the_remedy(run: Run, tmp_path: Path) -> None:
    with answering({"/queues": (401, b"{}")}) as listen:
        ran = run("queue", "show", "--data-dir", data_dir_of(tmp_path, listen))
    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
    assert "--data-dir" in ran.err


@pytest.mark.parametrize(
    "command", [["queue", "show"], ["queue", "purge", "--yes"], ["identities", "erase", "--yes"]]
)
def test_what_is_no_did_is_named_as_none_and_no_mediator_is_asked(
    run: Run, tmp_path: Path, command: list[str]
) -> None:
    ran = run(*command, "nonsense", "--data-dir", data_dir_of(tmp_path, "127.0.0.1:1"))
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert "'nonsense' is not a DID" in ran.err
