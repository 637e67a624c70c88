"""A web host on this machine with a certificate of its own: what did:web is fetched from."""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = "mediator.example"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class HttpsHost:
    """Answers as it is set up and remembers its requests; reached by ``NAME`` at ``port``."""

    port: int
    tls: ssl.SSLContext
    trust: ssl.SSLContext
    answer: Answer
    requests: list[web.Request] = field(default_factory=list)
    looked_up: list[tuple[str, int]] = field(default_factory=list)
    addresses: Sequence[str] = ("127.0.0.1",)

    @property
    def did(self) -> str:
        """The did:web whose document is at the well-known place."""
        return f"did:web:{NAME}%3A{self.port}"

    async def lookup(self, host: str, port: int) -> Sequence[str]:
        """In place of the name service: every name is ``addresses``."""
        self.looked_up.append((host, port))
        return self.addresses


@asynccontextmanager
async def https_host(folder: Path) -> AsyncIterator[HttpsHost]:
    """Run a host whose certificate is made here and trusted by ``trust`` alone."""
    certificate = _certificate(folder)
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_tls.load_cert_chain(certificate)

    async def handle(request: web.Request) -> web.StreamResponse:
        host.requests.append(request)
        return await host.answer(request)

    async def not_found(_request: web.Request) -> web.StreamResponse:
        raise web.HTTPNotFound

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_tls)
        await site.start()
        port = runner.addresses[0][1]
        trust = ssl.create_default_context(cafile=certificate)
        host = HttpsHost(port, server_tls, trust, not_found)
        yield host
    finally:
        await runner.cleanup()


def _certificate(folder: Path) -> Path:
    """A self-signed certificate for ``NAME`` and its key, in one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "host.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path
