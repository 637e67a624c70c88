"""The folder of a Ray session goes with the Ray that was started for a mediator, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray

from actors.ray import cluster


class Context:
    """What ``ray.init`` returns, as far as it is used."""

    def __init__(self, session: Path) -> None:
        self.address_info = {"session_dir": str(session)}


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a session; Ray itself neither starts nor ends."""
    session = tmp_path / "session_1"
    (session / "logs").mkdir(parents=True)
    (session / "logs" / "raylet.out").write_text("started")
    (tmp_path / "session_latest").symlink_to(session)

    def init(**_: Any) -> Context:
        return Context(session)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    return session


def test_the_folder_of_a_ray_of_its_own_is_removed_with_the_link_to_it(session: Path) -> None:
    assert cluster.start(None) == session
    cluster.stop(session)
    assert list(session.parent.iterdir()) == []


def test_the_folder_of_a_ray_that_was_joined_stays(session: Path) -> None:
    cluster.stop(cluster.start("192.0.2.1:6379"))
    assert (session / "logs" / "raylet.out").exists()
    assert (session.parent / "session_latest").exists()


def test_the_link_to_the_session_of_another_ray_stays(session: Path) -> None:
    another = session.parent / "session_2"
    another.mkdir()
    latest = session.parent / "session_latest"
    latest.unlink()
    latest.symlink_to(another)
    cluster.stop(session)
    assert {path.name for path in session.parent.iterdir()} == {"session_2", "session_latest"}
