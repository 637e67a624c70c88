"""TLS to a PostgreSQL log: the URL asks for it, and then no other server is believed.

The embedded server is built without TLS, so a front gives it: what counts here is what the client
asks for, whom it believes, and that it does not go on in the clear.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from eventstore.log.errors import LogUnavailable
from eventstore.stores.open_log import open_log
from eventstore.stores.postgres_bounds import PostgresBounds
from eventstore.stores.postgres_connections import is_refused
from tests.cluster.accounts import befriend, client, newcomer, waiting_payloads
from tests.cluster.server import Server
from tests.log.samples import OWNER, append, message
from tests.tls_front import TLS_PLEASE, Authority, TlsProxy

pytestmark = pytest.mark.postgres
_MORE_BYTES = 1_000


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.new(tmp_path / "authority.crt")


@contextmanager
def in_front(postgres_url: str, files: tuple[Path, Path]) -> Iterator[TlsProxy]:
    (folder,) = parse_qs(urlsplit(postgres_url).query)["host"]
    with TlsProxy(f"{folder}/.s.PGSQL.5432", files).running() as front:
        yield front


def secured(postgres_url: str, front: TlsProxy, authority: Authority) -> str:
    """The URL of the log behind the front, as ``--log`` takes it."""
    database = urlsplit(postgres_url).path
    tls = f"sslmode=verify-full&sslrootcert={authority.path}"
    return f"postgresql://postgres@localhost:{front.port}{database}?{tls}"


def test_a_log_is_read_and_written_over_verified_tls(
    tmp_path: Path, postgres_url: str, authority: Authority
) -> None:
    with in_front(postgres_url, authority.server_files(tmp_path, "localhost")) as front:
        with closing(open_log(secured(postgres_url, front, authority))) as log:
            append(log, OWNER, message(bytes(100_000)))
            assert len(log.read_stream(OWNER)) == 1
        assert front.handshakes >= 2


def test_a_server_of_another_name_is_not_believed(
    tmp_path: Path, postgres_url: str, authority: Authority
) -> None:
    with (
        in_front(postgres_url, authority.server_files(tmp_path, "elsewhere")) as front,
        pytest.raises(LogUnavailable, match=r"elsewhere.*does not match host name"),
    ):
        open_log(secured(postgres_url, front, authority))


def test_a_server_of_another_authority_is_not_believed(
    tmp_path: Path, postgres_url: str, authority: Authority
) -> None:
    foreign = Authority.new(tmp_path / "foreign.crt")
    with (
        in_front(postgres_url, foreign.server_files(tmp_path, "localhost")) as front,
        pytest.raises(LogUnavailable, match="certificate verify failed"),
    ):
        open_log(secured(postgres_url, front, authority))


def test_a_server_that_is_not_believed_is_no_server_that_is_away(
    tmp_path: Path, postgres_url: str, authority: Authority
) -> None:
    foreign, missing = Authority.new(tmp_path / "foreign.crt"), tmp_path / "missing.crt"
    with in_front(postgres_url, authority.server_files(tmp_path, "localhost")) as front:
        right = secured(postgres_url, front, authority)
        known = {
            right: False,
            right.replace("localhost", "127.0.0.1"): True,
            secured(postgres_url, front, foreign): True,
            right.replace(str(authority.path), str(missing)): True,
        }
        assert {url: is_refused(url, PostgresBounds()) for url in known} == known
    assert not is_refused(right, PostgresBounds()), "nothing listens there any more"


def error(code: str, text: str) -> bytes:
    """An error by which a server refuses a connection."""
    fields = f"SFATAL\0VFATAL\0C{code}\0M{text}\0\0".encode()
    return b"E" + struct.pack("!i", 4 + len(fields)) + fields


def test_only_the_last_word_of_a_server_says_whether_it_refuses(
    tmp_path: Path, authority: Authority
) -> None:
    """With ``sslmode=prefer`` a server that allows no TLS is asked again without."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.server_files(tmp_path, "localhost"))
    no_entry, starting = error("28000", "no"), error("57P03", "starting")
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:

        def answer(after: bytes) -> None:
            plain, _ = server.accept()
            assert plain.recv(_MORE_BYTES) == TLS_PLEASE
            plain.sendall(b"S")
            with context.wrap_socket(plain, server_side=True) as secure:
                secure.recv(_MORE_BYTES)
                secure.sendall(no_entry)
            plain, _ = server.accept()
            with plain:
                plain.recv(_MORE_BYTES)
                plain.sendall(after)

        url = f"postgresql://user@127.0.0.1:{server.getsockname()[1]}/postgres"
        for last, refuses in ((starting, False), (no_entry, True)):
            answering = thread.submit(answer, last)
            assert is_refused(url, PostgresBounds()) is refuses
            answering.result()


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("no such database: unknown", True),
        ("no such user: other", True),
        ("password authentication failed", True),
        ('"trust" authentication failed', True),
        ("SSL required", True),
        ("unsupported startup parameter: options", True),
        ("unsupported options startup parameter: only '-c config=val' is allowed", True),
        ('database "unknown" is disabled', True),
        ('authentication database "users" is disabled', True),
        ("database does not allow connections: unknown", True),
        ("bouncer config error", True),
        ("not allowed", True),
        ("client_login_timeout (server down)", False),
        ("no more connections allowed (max_client_conn)", False),
        ("pgbouncer cannot connect to server", False),
        ("query_wait_timeout", False),
    ],
)
def test_a_pooler_that_knows_no_such_login_refuses_and_one_without_a_server_does_not(
    text: str, *, refuses: bool
) -> None:
    """As PgBouncer 1.18 says it, or a neighbouring release: all with one SQLSTATE, 08P01."""
    assert is_taken_for_refusal("08P01", text) is refuses


def test_a_database_that_a_pooler_has_disabled_is_named_with_what_enables_it() -> None:
    with (
        answering("08P01", 'database "unknown" is disabled') as url,
        pytest.raises(LogUnavailable, match=r'"unknown" is disabled in PgBouncer: give ENABLE'),
    ):
        open_log(url)


@pytest.mark.parametrize(("code", "refuses"), [("28000", True), ("57P03", False)])
def test_a_server_may_say_in_several_lines_why_it_takes_no_connection(
    code: str, *, refuses: bool
) -> None:
    assert is_taken_for_refusal(code, "not for you:\nsee the handbook") is refuses


def is_taken_for_refusal(code: str, text: str) -> bool:
    """What is made of a server that answers each start of a connection with this error."""
    with answering(code, text) as url:
        return is_refused(url, PostgresBounds())


@contextmanager
def answering(code: str, text: str) -> Iterator[str]:
    """The URL of a server that answers the start of a connection, one alone, with this error."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:

        def answer() -> None:
            caller, _ = server.accept()
            with caller:
                caller.recv(_MORE_BYTES)
                caller.sendall(error(code, text))

        answered = thread.submit(answer)
        yield f"postgresql://user@127.0.0.1:{server.getsockname()[1]}/unknown?sslmode=disable"
        answered.result()


def test_a_server_without_tls_gets_nothing_in_the_clear(authority: Authority) -> None:
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as plain, ThreadPoolExecutor(1) as thread:

        def refuse() -> None:
            caller, _ = plain.accept()
            with caller:
                received.append(caller.recv(_MORE_BYTES))
                caller.sendall(b"N")
                received.append(caller.recv(_MORE_BYTES))

        refusing = thread.submit(refuse)
        port = plain.getsockname()[1]
        with pytest.raises(LogUnavailable, match="does not support SSL"):
            open_log(
                f"postgresql://user:secret@127.0.0.1:{port}/postgres"
                f"?sslmode=verify-full&sslrootcert={authority.path}"
            )
        refusing.result()
    assert received == [TLS_PLEASE, b""]


@pytest.mark.cluster
async def test_poste_serves_from_a_log_over_verified_tls(
    tmp_path: Path, postgres_url: str, authority: Authority
) -> None:
    with in_front(postgres_url, authority.server_files(tmp_path, "localhost")) as front:
        log = secured(postgres_url, front, authority)
        with Server(tmp_path / "data", log=log) as server:
            async with client(server.url) as mediator:
                writer = await newcomer(mediator, "writer")
                reader = await newcomer(mediator, "reader")
                await befriend(writer, reader)
                assert await writer.send(reader.identity.did, "over TLS")
                assert await waiting_payloads(reader) == ["over TLS"]
        assert front.handshakes >= 3
