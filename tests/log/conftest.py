"""A server that a test may do anything to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.database_server import DatabaseServer, database_directory


@pytest.fixture
def server_of_its_own() -> Iterator[DatabaseServer]:
    with database_directory() as directory:
        server = DatabaseServer.new(directory / "one")
        server.start()
        yield server
