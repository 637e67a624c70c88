"""``poste shards`` and ``poste identities``: orders to the placer, and the time that they take."""

import http.client
import json
from pathlib import Path

import pytest

from actors.placement import placer_link
from http_edge.cli import shards
from http_edge.server.exits import Exit
from tests.unit.cli.conftest import Run, answering, data_dir_of


@pytest.mark.parametrize(
    "order",
    [["shards", "move", "shard-0", "host-1"], ["shards", "undrain", "node-1"]]
    + [["identities", name, "did:x:alice"] for name in ("dedicate", "release")],
)
def test_an_order_is_awaited_for_as_long_as_the_placer_may_take(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: list[str]
) -> None:
    timeouts = []

    class Timed(http.client.HTTPConnection):
        def __init__(self, host: str, timeout: float) -> None:
            timeouts.append(timeout)
            super().__init__(host, timeout=timeout)

    monkeypatch.setattr(http.client, "HTTPConnection", Timed)
    path = "/".join(["", *order[:2]])
    with answering({path: (200, b'{"placed": "DONE"}')}) as listen:
        ran = run(*order, "--data-dir", data_dir_of(tmp_path, listen))
    assert (ran.code, timeouts) == (Exit.OK, [placer_link._ORDER_S_MAX])


def test_identities_are_listed_with_the_warning_that_a_placer_may_not_have_answered(
    run: Run, tmp_path: Path
) -> None:
    for host, warnings in (("host-b-1-0", 0), (None, 1)):
        places = [{"shard": "shard-0", "host": "host-b-0-0"}, {"shard": "shard-1", "host": host}]
        body = json.dumps({"shards": places, "hosts": [], "identities": []}).encode()
        (folder := tmp_path / str(warnings)).mkdir()
        with answering({"/shards": (200, body)}) as listen:
            ran = run("identities", "list", "--json", "--data-dir", data_dir_of(folder, listen))
        assert ran.code == Exit.OK
        assert json.loads(ran.out) == {"identities": [], "unknown_shards": warnings}
        assert ran.err.count("1 shards have no known host") == warnings


@pytest.mark.parametrize("host", [None, "host-a-1-0"], ids=["still silent", "there again"])
def test_a_database_whose_placer_did_not_hear_of_an_order_is_named_once_the_others_are_done(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str | None
) -> None:
    monkeypatch.setattr(shards, "_EMPTY_S_MAX", 0.0)
    places = [
        {"shard": "shard-0", "host": "host-b-0-0", "node": "b"},
        {"shard": "shard-1", "host": host, "node": host and "a"},
    ]
    hosts = [
        {"host": "host-a-1-0", "node": "a", "shards": int(host is not None), "draining": False},
        {"host": "host-b-0-0", "node": "b", "shards": 1, "draining": False},
    ]
    silent = b'"silent": {"1": ["shard-1"]}}'
    answers = {
        "/shards/drain": (200, b'{"placed": "DONE", ' + silent),
        "/shards/undrain": (200, b'{"placed": "NO_SUCH_NODE", ' + silent),
        "/shards": (200, json.dumps({"shards": places, "hosts": hosts}).encode()),
    }
    with answering(answers) as listen:
        folder = data_dir_of(tmp_path, listen)
        drained = run("shards", "drain", "a", "--data-dir", folder)
        unknown = run("shards", "undrain", "a", "--data-dir", folder)
    assert (drained.code, unknown.code) == (Exit.UNREACHABLE, Exit.USAGE)
    assert "placer of database 1 (1 shards) did not answer" in drained.err
    assert "a is empty as far as the other databases are concerned" in drained.err
    assert "is empty" not in drained.out
    assert "No host is running on a node with this name. The placer of database 1" in unknown.err


def test_a_database_whose_placer_falls_silent_after_an_order_is_named_as_if_it_had_before(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_EMPTY_S_MAX", 0.0)
    places = [
        {"shard": "shard-0", "host": "host-b-0-0", "node": "b"},
        {"shard": "shard-1", "host": None, "node": None},
    ]
    hosts = [
        {"host": "host-a-0-0", "node": "a", "shards": 0, "draining": True},
        {"host": "host-b-0-0", "node": "b", "shards": 1, "draining": False},
    ]
    said = {"shards": places, "hosts": hosts, "silent": {"1": ["shard-1"]}}
    answers = {
        "/shards/drain": (200, b'{"placed": "DONE"}'),
        "/shards": (200, json.dumps(said).encode()),
    }
    with answering(answers) as listen:
        ran = run("shards", "drain", "a", "--data-dir", data_dir_of(tmp_path, listen))
    assert ran.code == Exit.UNREACHABLE
    assert "placer of database 1 (1 shards) did not answer" in ran.err
    assert "a is empty as far as the other databases are concerned" in ran.err


def test_a_node_is_not_called_empty_while_the_host_of_a_shard_is_not_known(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_EMPTY_S_MAX", 0.0)
    hosts = [
        {"host": "host-a-0-0", "node": "a", "shards": 0, "draining": True},
        {"host": "host-b-0-0", "node": "b", "shards": 1, "draining": False},
    ]
    for other, code in ((None, Exit.FINDING), ("host-b-1-0", Exit.OK)):
        places = [
            {"shard": "shard-0", "host": "host-b-0-0", "node": "b"},
            {"shard": "shard-1", "host": other, "node": other and "b"},
        ]
        answers = {
            "/shards/drain": (200, b'{"placed": "DONE"}'),
            "/shards": (
                200,
                json.dumps({"shards": places, "hosts": hosts, "silent": {"1": []}}).encode(),
            ),
        }
        (folder := tmp_path / str(code)).mkdir()
        with answering(answers) as listen:
            ran = run("shards", "drain", "a", "--data-dir", data_dir_of(folder, listen))
        assert ran.code == code
        for text in ("1 shards have no known host", "placer of database 1 is silent"):
            assert (text in ran.err) == (other is None)
