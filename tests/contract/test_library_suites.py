"""The event sourcing library's own suites for recorders, on ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import patch

import pytest
from eventsourcing.persistence import ApplicationRecorder

from eventstore.log.session import Store
from eventstore.stores.postgres_log import PostgresStore
from eventstore.stores.sqlite_connections import create_file
from eventstore.stores.sqlite_log import SqliteStore

with patch.dict(sys.modules, {"eventsourcing.cipher": SimpleNamespace(AESCipher=object)}):
    # The module also holds suites for ciphers, which need a package that nothing here needs.
    from eventsourcing.tests.persistence import (
        ApplicationRecorderTestCase,
        NonInterleavingNotificationIDsBaseCase,
    )


class _OnOurStore:
    """Gives each test of a suite a store of its own, and closes it."""

    _store: ClassVar[Store]

    def create_recorder(self) -> ApplicationRecorder:
        return self._store.recorder


class _OnSqlite(_OnOurStore):
    @pytest.fixture(autouse=True)
    def _open(self, tmp_path: Path) -> Iterator[None]:
        path = tmp_path / "log.db"
        create_file(path)
        type(self)._store = SqliteStore(path)
        yield
        self._store.close()


@pytest.mark.postgres
class _OnPostgres(_OnOurStore):
    @pytest.fixture(autouse=True)
    def _open(self, postgres_url: str) -> Iterator[None]:
        type(self)._store = PostgresStore(postgres_url)
        yield
        self._store.close()


class TestSqliteRecorder(_OnSqlite, ApplicationRecorderTestCase[ApplicationRecorder]): ...


class TestSqliteRecorderOrder(_OnSqlite, NonInterleavingNotificationIDsBaseCase): ...


class TestPostgresRecorder(_OnPostgres, ApplicationRecorderTestCase[ApplicationRecorder]): ...


class TestPostgresRecorderOrder(_OnPostgres, NonInterleavingNotificationIDsBaseCase): ...


# Collected by name in this module, where they are abstract.
del ApplicationRecorderTestCase, NonInterleavingNotificationIDsBaseCase
