"""Rules of effects: time, chance, the environment and Ray come in at few and named places."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.tidy.modules import PRODUCT, Module, modules

TIME_AND_CHANCE = {
    "time.time",
    "time.time_ns",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
    "uuid.uuid1",
    "uuid.uuid4",
    "random",
    "secrets",
    "os.urandom",
}
MAY_ASK_TIME_AND_CHANCE = {
    "actors/host/clock.py": "the server's clock and ids",
    "actors/host/host_connection.py": "makes the token of its lines",
    "actors/ray/environment.py": "makes Ray's token",
    "eventstore/stores/sqlite_contents.py": "makes secrets and nonces that no log shows",
    "http_edge/crypto/aes_gcm.py": "makes nonces of AES-GCM",
    "http_edge/clients/sources.py": "the client's clock, nonces and jitter",
    "http_edge/didcomm/envelopes/v1/envelope.py": "makes content keys and nonces",
    "http_edge/didcomm/envelopes/v2/content_encryption.py": "makes content keys and nonces",
    "http_edge/didcomm/envelopes/keys.py": "makes key pairs",
    "http_edge/crypto/key_agreement.py": "makes ephemeral keys",
    "http_edge/server/restoring.py": "tells restores from each other",
    "http_edge/crypto/mediator_keys.py": "makes the mediator's keys",
    "projections/generations/place.py": "when a generation was made, and which files are old",
    "projections/rebuild/rebuild.py": "tells runs of rebuilds from each other",
}
ENVIRONMENT = {"os.environ", "os.getenv", "os.putenv"}
MAY_TOUCH_THE_ENVIRONMENT = {
    "actors/ray/environment.py": "tells Ray's processes their token, and not to report usage",
    "http_edge/cli/entry.py": "tells Pythons that it starts what they must not import",
    "http_edge/cli/settings.py": "the one reader of settings",
    "http_edge/server/systemd.py": "where systemd listens, if it started this",
    "http_edge/telemetry/logs.py": "does the terminal want colors",
    "projections/spark/java.py": "finds the operator's Java",
}
MAY_IMPORT_RAY = {
    "actors/ray/hang_watch.py": "what Ray says of a process that it starts again",
    "actors/ray/processes.py": "Ray itself, and hosts as Ray actors",
    "actors/ray/unused_parts.py": "what of Ray is not started",
    "http_edge/server/ray_edge.py": "edges as Ray actors",
    "http_edge/server/serve.py": "starts and stops them all",
}
PURE = ("actors/core/", "http_edge/didcomm/envelopes/")
"""Folders: whatever is put there has to be pure."""
PURE_BESIDES = (
    "actors/placement/assignment.py",
    "actors/placement/dedication.py",
    "eventstore/log/events.py",
    "eventstore/log/merkle.py",
    "eventstore/log/proof.py",
    "eventstore/log/public_key.py",
    "eventstore/log/signed_note.py",
    "eventstore/log/tiles.py",
    "eventstore/log/tree_head.py",
    "http_edge/telemetry/refusal_counts.py",
)
EFFECTS = {"aiohttp", "asyncio", "logging", "os", "psycopg", "ray", "socket", "sqlite3", "time"}


def _users(names: Iterable[str]) -> set[str]:
    """Paths of the modules that use one of these names or a module below one of them."""
    wanted = set(names)
    return {
        module.path
        for module in modules(*PRODUCT)
        for name, _ in module.uses()
        if name in wanted or name.partition(".")[0] in wanted
    }


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("import datetime\ndatetime.datetime.now().year", "datetime.datetime.now"),
        ("import datetime as dt\ndt.date.today()", "datetime.date.today"),
        ("from datetime import datetime as when\nwhen.now()", "datetime.datetime.now"),
        ("def f(): clock.time()\nimport time as clock", "time.time"),
        ("from time import time as now\nnow()", "time.time"),
        ("import os\nos.environ.get('A')", "os.environ"),
    ],
)
def test_what_a_module_reaches_is_found_under_whatever_name(
    tmp_path: Path, text: str, used: str
) -> None:
    (tmp_path / "any.py").write_text(text)
    module = Module(str(tmp_path / "any.py"))
    assert used in {name for name, _ in module.uses()}


def test_time_and_chance_come_in_at_named_places() -> None:
    assert _users(TIME_AND_CHANCE) == set(MAY_ASK_TIME_AND_CHANCE)


def test_the_environment_is_touched_at_named_places() -> None:
    assert _users(ENVIRONMENT) == set(MAY_TOUCH_THE_ENVIRONMENT)


def test_ray_stands_behind_its_own_modules() -> None:
    assert _users({"ray"}) == set(MAY_IMPORT_RAY)


def test_the_core_is_pure() -> None:
    pure = [m for m in modules(*PRODUCT) if m.path.startswith((*PURE, *PURE_BESIDES))]
    assert len(pure) > len(PURE_BESIDES) + 20
    effects = {
        module.path: EFFECTS & {name.partition(".")[0] for name, _ in module.uses()}
        for module in pure
    }
    assert {path: found for path, found in effects.items() if found} == {}
