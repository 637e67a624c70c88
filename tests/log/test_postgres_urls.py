"""URLs of a PostgreSQL log that cannot be read, without a server."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from eventstore.log.errors import LogUnavailable
from eventstore.stores.open_log import open_log

PASSWORD = "hunter2"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"postgresql://poste:50%{PASSWORD}@127.0.0.1:1/poste", "invalid percent-encoded token"),
        (f"postgresql://poste:{PASSWORD}%00@127.0.0.1:1/poste", "forbidden value %00"),
        (f"postgresql://poste:a@{PASSWORD}@127.0.0.1:1/poste", "@ as %40"),
        (f"postgresql://poste:a/{PASSWORD}@127.0.0.1:1/poste", "/ as %2F"),
        (f"postgresql://poste:1/{PASSWORD}@127.0.0.1:1/poste", "/ as %2F"),
        (f"postgresql://poste:a@{PASSWORD}/b@127.0.0.1:1/poste", "@ as %40"),
        (f"postgresql://poste:a?b@{PASSWORD}@127.0.0.1:1/poste", "@ as %40"),
        (f"postgresql://poste:{PASSWORD}?user=b/c@127.0.0.1:1/poste", "/ as %2F"),
        (f"postgresql://poste:a {PASSWORD}@127.0.0.1:1/poste", "unexpected spaces"),
        ("postgresql://poste@127.0.0.1:1/poste?port", "missing key/value separator"),
    ],
)
def test_a_url_that_cannot_be_read_is_explained_without_its_password(url: str, why: str) -> None:
    with pytest.raises(LogUnavailable) as refused:
        open_log(url)
    assert why in str(refused.value)
    assert "%25" in str(refused.value)
    assert PASSWORD not in "".join(traceback.format_exception(refused.value))


def test_the_name_of_a_database_may_have_an_at_sign(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable) as refused:
        open_log(f"postgresql:///log%40poste?host={tmp_path}")
    assert "%40" not in str(refused.value)
    assert str(tmp_path) in str(refused.value)
