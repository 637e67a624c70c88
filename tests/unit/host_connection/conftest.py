"""What tests of the lines between edges and hosts share."""

from __future__ import annotations

import pytest

from actors.host import host_client

PATIENCE_S = 10.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges that wait for their host longer than any machine is busy with other tests."""
    monkeypatch.setattr(host_client, "_CONNECT_S_MAX", PATIENCE_S)
