"""What a mediator asks of its log before it serves it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from eventstore.log.codec import encode
from eventstore.log.seal import GENESIS, seal
from eventstore.log.streams import partition_stream
from eventstore.stores.open_log import open_log
from http_edge.server.exits import Exit, Stop
from http_edge.server.log_check import check_log
from http_edge.settings.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a mediator that served a log with a row, and stopped."""
    made = Settings(did="did:web:mediator.example", data_dir=tmp_path)
    check_log(made)
    with closing(open_log(made.log_dsn)) as log:
        sealed = seal(
            [], [], partition="shard-0", epoch=1, at_ms=1, window_ms=1, nonces=b"", previous=GENESIS
        )
        log.append([encode(partition_stream("shard-0"), 1, sealed)], [sealed])
    return made


def test_the_same_log_is_served_again(settings: Settings) -> None:
    assert check_log(settings) == check_log(settings)


@pytest.mark.parametrize("how", ["emptied", "removed"])
def test_an_empty_log_beside_used_keys_is_refused_until_the_operator_says_otherwise(
    settings: Settings, how: str
) -> None:
    for name in ("log.db", "log.db-wal", "log.db-shm"):
        (settings.data_dir / name).unlink(missing_ok=True)
    if how == "emptied":
        (settings.data_dir / "log.db").touch()
    for _ in range(2):
        with pytest.raises(Stop, match="The log is empty") as refused:
            check_log(settings)
        assert refused.value.exit_code == Exit.UNSAFE
        assert "poste restore" in refused.value.remedy
    (settings.data_dir / "log-id").unlink()
    check_log(settings)


def test_keys_that_were_made_beforehand_are_no_used_keys(tmp_path: Path) -> None:
    settings = Settings(did="did:web:mediator.example", data_dir=tmp_path / "served")
    settings.data_dir.mkdir()
    check_log(settings)
    other = Settings(did="did:web:mediator.example", data_dir=tmp_path / "new")
    other.data_dir.mkdir()
    other.keys_path.write_bytes(settings.keys_path.read_bytes())
    other.keys_path.chmod(0o600)
    check_log(other)
