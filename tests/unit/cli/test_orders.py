"""``poste shards`` and ``poste identities``: orders to the placer, and the time that they take."""

import http.client
from pathlib import Path

import pytest

from actors.placement import placer_link
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
