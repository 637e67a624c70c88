"""``poste queue``: queues with their owners, and an unknown DID named as one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server.exits import Exit
from tests.unit.cli.conftest import Run, answering

DID = "did:decentrl:" + "z6MkotvgNfXbr1sXKFLDKkTZ4d7KRPRkio6qfwE31HSHPS27" * 3
QUEUE = {"did": DID, "messages": 2, "bytes": 9, "oldest_age_s": 1.5, "outbound": False}


@pytest.fixture(autouse=True)
def keys(tmp_path: Path) -> None:
    load_or_create(tmp_path / "data" / "mediator-keys.json")


def server(queues: list[dict[str, Any]], *, known: bool) -> Any:
    answer = {"queues": queues, "known": known, "agent": None}
    body = json.dumps(answer).encode()
    return answering({"/queues": (200, body), "/queues/purge": (200, body)})


@pytest.fixture
def empty() -> Iterator[str]:
    with server([], known=True) as listen:
        yield listen


def test_a_queue_is_shown_with_the_whole_did_of_its_owner(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with server([QUEUE], known=True) as listen:
        ran = run("queue", "show", DID, "--listen", listen)
    assert (ran.code, ran.err) == (Exit.OK, "")
    assert DID in ran.out
    assert " 2 " in ran.out


@pytest.mark.parametrize("form", [["show"], ["show", "--json"], ["purge", "--yes"]])
def test_an_unknown_did_is_named_as_one(run: Run, form: list[str]) -> None:
    with server([], known=False) as listen:
        ran = run("queue", *form, "did:x:stranger", "--listen", listen)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert "this mediator knows no identity did:x:stranger" in ran.err


def test_an_empty_queue_is_no_fault(run: Run, empty: str) -> None:
    ran = run("queue", "show", DID, "--listen", empty)
    assert (ran.code, ran.err) == (Exit.OK, "")
    assert " none\n" in ran.out


def test_a_mediator_with_other_keys_names_the_remedy(run: Run) -> None:
    with answering({"/queues": (401, b"{}")}) as listen:
        ran = run("queue", "show", "--listen", listen)
    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
    assert "--data-dir" in ran.err
