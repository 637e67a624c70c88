"""``poste verify --live`` leaves nothing of the memory of hosts behind, also if it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from actors.host.inspection import CachedIdentities, InspectionAnswer
from eventstore.stores.open_log import open_log
from tests.export.leaving import played, settings_of
from tests.tidy.modules import ROOT

POSTE = (sys.executable, "-c", "from http_edge.cli.main import main; main()")
WAIT_S = 60


class _Operators(ThreadingHTTPServer):
    """Says whom it has in memory, and leaves the question about their states open."""

    def __init__(self) -> None:
        self.is_asked, self.is_over = threading.Event(), threading.Event()
        self.questions = 0
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, _Operators)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.questions += 1
        if self.server.questions > 1:
            self.server.is_asked.set()
            self.server.is_over.wait(WAIT_S)
            return
        answer: InspectionAnswer = CachedIdentities(["did:example:cached"])
        body = msgspec.msgpack.encode(answer)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _operators() -> Iterator[_Operators]:
    with _Operators() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.is_over.set()
            server.shutdown()
            thread.join()


@pytest.mark.thorough
def test_a_live_comparison_that_is_terminated_leaves_no_file(tmp_path: Path) -> None:
    settings, scratch = settings_of(tmp_path / "data"), tmp_path / "scratch"
    scratch.mkdir()
    settings.operators_token_path.write_text("token-of-operators")
    settings.operators_token_path.chmod(0o600)
    with closing(open_log(settings.log_dsn)) as log:
        log.setting("mediator_did", settings.mediator_did)
        log.setting("shards", str(settings.shards))
        played(log, 50)
    with _operators() as server:
        url = f"http://127.0.0.1:{server.server_port}"
        places = ("--data-dir", str(settings.data_dir), "--from", str(tmp_path / "export"))
        with subprocess.Popen(
            [*POSTE, "verify", "--live", "--url", url, *places],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            env=os.environ | {"TMPDIR": str(scratch)},
        ) as program:
            try:
                assert server.is_asked.wait(WAIT_S)
                assert [*scratch.iterdir()]
                program.send_signal(signal.SIGTERM)
                # It does not wait for the answer, which may come after its own end is due.
                _, said = program.communicate(timeout=WAIT_S / 2)
            finally:
                program.kill()
    assert (program.returncode, said) == (128 + signal.SIGTERM, b"")
    assert not [*scratch.iterdir()]
