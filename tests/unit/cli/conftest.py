"""Runs the command line as the entry point does, with its exit code and what it printed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TypeAlias

import pytest

from http_edge.cli.main import main
from http_edge.crypto.private_files import create_private
from http_edge.settings.reference import PREFIX


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run: TypeAlias = Callable[..., Ran]


@contextmanager
def answering(answers: Mapping[str, tuple[int, bytes]]) -> Iterator[str]:
    """A server on a free port of this machine; yields where it listens.

    ``answers`` are status and body by path, with its query or for any query; any other path is a
    404.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            of_any = answers.get(self.path.partition("?")[0], (404, b""))
            status, body = answers.get(self.path, of_any)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - its name

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        # Its end is seen when it looks next.
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


TOKEN = "0123456789abcdef"


def data_dir_of(folder: Path, listen: str) -> str:
    """The data directory of a mediator that answers operators at this address."""
    (folder / "operators-address").write_text(f"http://{listen}")
    create_private(folder / "operators-token", TOKEN.encode())
    return str(folder)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run("keys", "--json")`` in a directory of its own, without settings, on a wide screen."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*args: str) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main(args)
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ran(int(ended.value.code), captured.out, captured.err)

    return call
