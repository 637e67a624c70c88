"""TLS in front of a PostgreSQL server, and certificates that a test makes for itself.

The embedded server is built without TLS. What is tested is the client's side: what it asks for,
whom it believes, and that nothing passes in the clear.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
import struct
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.ports import free_port

TLS_PLEASE: Final = struct.pack("!ii", 8, 80_877_103)
_START_S_MAX: Final = 10.0
_BLOCK_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority; ``path`` holds its certificate."""

    key: EllipticCurvePrivateKey
    certificate: x509.Certificate
    path: Path

    @classmethod
    def new(cls, path: Path) -> Authority:
        """An authority that no client knew before."""
        key = generate_private_key(SECP256R1())
        certificate = _certificate(key, key, issuer=path.stem, subject=path.stem, is_ca=True)
        path.write_bytes(certificate.public_bytes(Encoding.PEM))
        return cls(key, certificate, path)

    def server_files(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Certificate and key of a server with this name."""
        key = generate_private_key(SECP256R1())
        certificate = _certificate(key, self.key, issuer=self.path.stem, subject=name)
        files = folder / f"{name}.crt", folder / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(Encoding.PEM))
        files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files


class TlsProxy:
    """Takes connections of PostgreSQL clients on loopback, those that ask for TLS alone.

    Attributes:
        port: Where it listens.
        handshakes: Connections that were encrypted.
    """

    def __init__(self, server: str, files: tuple[Path, Path]) -> None:
        """A front of the server with this Unix socket, with this certificate and key."""
        self._server = server
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(*files)
        self.port = 0
        self.handshakes = 0

    @contextmanager
    def running(self) -> Iterator[TlsProxy]:
        """Serve, in a thread of its own, until the end of the block."""
        with ThreadPoolExecutor(1) as thread:
            listening: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
            served = thread.submit(lambda: asyncio.run(self._run(listening)))
            loop, stopping = listening.result(_START_S_MAX)
            try:
                yield self
            finally:
                loop.call_soon_threadsafe(stopping.set)
                served.result()

    async def _run(
        self, listening: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]
    ) -> None:
        stopping = asyncio.Event()
        self.port = free_port()  # where nothing listens afterwards
        front = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        listening.set_result((asyncio.get_running_loop(), stopping))
        await stopping.wait()
        front.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await reader.readexactly(len(TLS_PLEASE)) == TLS_PLEASE:
                writer.write(b"S")
                await writer.start_tls(self._context)
                self.handshakes += 1
                from_server, to_server = await asyncio.open_unix_connection(self._server)
                try:
                    await asyncio.gather(_pass_on(reader, to_server), _pass_on(from_server, writer))
                finally:
                    to_server.close()  # also where neither way has begun
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while block := await reader.read(_BLOCK_BYTES):
            writer.write(block)
            await writer.drain()
    except OSError:
        return
    finally:
        writer.close()


def _certificate(
    key: EllipticCurvePrivateKey,
    signer: EllipticCurvePrivateKey,
    *,
    issuer: str,
    subject: str,
    is_ca: bool = False,
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(subject)]), critical=False)
        .sign(signer, SHA256())
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
