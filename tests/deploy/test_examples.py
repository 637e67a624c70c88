"""The examples of the guide run as they stand there, against a mediator."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from actors.host.clock import system_clock
from tests.deploy.manifests import DEPLOY
from tests.edge.mediator import HandClock, Mediator
from tests.ports import free_port

EXAMPLES = sorted((DEPLOY / "docs/examples").glob("*.py"))
ELSEWHERE = {"check_evidence.py", "check_push.py", "sealed_rows.py"}
"""Tested in ``tests/export/test_evidence_example.py`` and ``tests/unit/push/test_webhook.py``."""


@pytest.mark.parametrize(
    "path", [one for one in EXAMPLES if one.name not in ELSEWHERE], ids=lambda path: path.stem
)
async def test_an_example_runs_and_reads_what_was_sent(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The invitation names the mediator's URL, so the port is known before it listens.
    listen = f"127.0.0.1:{free_port()}"
    url = f"http://{listen}"
    mediator = Mediator(tmp_path, HandClock(system_clock()), listen=listen, public_url=url)
    await mediator.start()
    try:
        await runpy.run_path(str(path))["main"](url)
    finally:
        await mediator.stop()
    assert "hello, Bob" in capsys.readouterr().out


def test_every_example_is_shown_in_the_guide() -> None:
    pages = "".join(page.read_text("utf-8") for page in (DEPLOY / "docs/pages").rglob("*.md"))
    assert [path.name for path in EXAMPLES if f'--8<-- "{path.name}"' not in pages] == []
