"""Fixtures of the export: logs on both stores, places on disk and in an object store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from moto.server import ThreadedMotoServer

from eventstore.log.event_log import EventLog
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.stores.open_log import open_log
from tests.contract.conftest import log, log_url, open_another

__all__ = ["log", "log_url", "open_another"]


@pytest.fixture
def place(tmp_path: Path) -> ExportPlace:
    return open_place(str(tmp_path / "export"))


@pytest.fixture
def sqlite_log(tmp_path: Path) -> Iterator[EventLog]:
    opened = open_log(f"sqlite:{tmp_path / 'log.db'}")
    yield opened
    opened.close()


@pytest.fixture
def s3_server() -> Iterator[ThreadedMotoServer]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def s3_uri(s3_server: ThreadedMotoServer) -> str:
    host, port = s3_server.get_host_and_port()
    bucket = f"exports-{uuid4().hex}"  # the server keeps buckets beyond its end
    options = f"scheme=http&endpoint_override={host}:{port}&region=us-east-1"
    making = open_place(f"s3://key:secret@{bucket}/?{options}&allow_bucket_creation=true")
    making.filesystem.create_dir(bucket)
    return f"s3://key:secret@{bucket}/mediator?{options}"
