"""A whole mediator in this process: real sockets, real hosts, a real log, a clock held by hand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import orjson
from aiohttp import WSMsgType
from multidict import CIMultiDictProxy
from yarl import URL

from eventstore.log.codec import decode
from eventstore.log.events import Event, MessageQueued, RefusalsCounted, RefusedCommands
from eventstore.stores.open_log import open_log
from http_edge.crypto.mediator_keys import MediatorKeys, load_operators_token
from http_edge.dispatch.routes import Routes
from http_edge.server.edge import Edge
from http_edge.server.hosts import placement_of
from http_edge.settings.settings import Settings
from tests.edge.identities import Identity, Json, public_event, registration, signed_contract
from tests.edge.local_host import LocalHosts

MEDIATOR_DID: Final = "did:web:mediator.example"
PUBLIC_URL: Final = "https://mediator.example"
NOW_MS: Final = 1_800_000_000_000
KEYS: Final = MediatorKeys(signing_seed=b"s" * 32, pre_private=b"p" * 32)
DAY_S: Final = 86_400
WAIT_S: Final = 10.0
"""How long a test waits for what must come; it passes as soon as it has come."""

SUCCESS: Final = {"type": "SUCCESS"}

LAYOUTS: Final[dict[str, Json]] = {
    "one host": {},
    "two hosts": {"hosts": 2},
}
"""Where the hosts own what: between them, nonce and effect fall on the same host and on two."""


class HandClock:
    """Unix milliseconds that pass only by ``advance``."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    @property
    def now_s(self) -> int:
        """Unix seconds, whole."""
        return self.now_ms // 1000

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ms += round(seconds * 1000)


class Answer(msgspec.Struct, frozen=True):
    """What came back over HTTP."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)

    @property
    def payload(self) -> Json:
        """The payload of a success."""
        assert self.status == 200, self.body
        payload: Json = self.json["payload"]
        return payload

    @property
    def refusal(self) -> tuple[int, str]:
        """Status and code of an error in the protocol's form."""
        assert self.headers["Content-Type"].startswith("application/json")
        error = self.json
        assert set(error) <= {"type", "code", "detail"}, error
        assert error["type"] == "ERROR", error
        return self.status, error["code"]


class Mediator:
    """A mediator under test and a client for everything it offers."""

    def __init__(self, data_dir: Path, clock: HandClock, **settings: Any) -> None:
        self.clock = clock
        self.settings = _settings(data_dir, settings)
        self.former_urls: list[str] = []
        self._ids = itertools.count(1)
        self._nonces = itertools.count(1)
        self.hosts = LocalHosts(self.settings, clock=clock, new_id=self._new_id)
        self.edges: list[Edge] = []
        self.ports: list[int] = []
        self.token = ""
        self._session: aiohttp.ClientSession | None = None

    # ---- its life

    async def start(self) -> None:
        """Open the log, start the hosts, listen."""
        self.hosts.start()
        for index in range(self.settings.edges):
            name = f"edge-{index}"
            ports = self.hosts.ports_of(name)
            edge = Edge(
                name,
                self.settings,
                KEYS,
                ports,
                routes=self.routes(),
                clock=self.clock,
                former_urls=self.former_urls,
            )
            self.hosts.attach(name, edge.take_push)
            self.edges.append(edge)
            self.ports.append(await edge.start())
        self.token = load_operators_token(self.settings.operators_token_path)
        self._session = aiohttp.ClientSession(auto_decompress=False)

    def routes(self) -> Routes:
        """The routes of one edge."""
        return Routes.fixed(placement_of(self.settings))

    async def stop(self) -> None:
        """Stop everything; the log and the keys stay."""
        await self.http.close()
        await asyncio.gather(*[edge.stop() for edge in self.edges])
        await self.hosts.stop()
        self.edges.clear()
        self.ports.clear()

    async def restart(self, settings: Json | None = None) -> None:
        """Stop edges and hosts and start new ones on the same log, with other settings if any."""
        await self.stop()
        if settings is not None:
            self.settings = _settings(self.settings.data_dir, settings)
            self.hosts = LocalHosts(self.settings, clock=self.clock, new_id=self._new_id)
        await self.start()

    async def move(self, public_url: str) -> None:
        """Restart with another public URL, and know the URLs so far as former ones."""
        self.former_urls.append(self.settings.url)
        await self.restart({"listen": self.settings.listen, "public_url": public_url})

    def log_position(self) -> int:
        """The position of the newest row of the log, seals included."""
        log = open_log(self.settings.log_dsn)
        try:
            return log.position()
        finally:
            log.close()

    def facts(self) -> list[str]:
        """The topics of all rows of the log but the seals."""
        log = open_log(self.settings.log_dsn)
        try:
            rows = log.read_log(limit=1_000_000)
        finally:
            log.close()
        return [row.topic for row in rows if row.topic != "batch-sealed.1"]

    def events(self) -> list[Event]:
        """The events of all rows of the log."""
        log = open_log(self.settings.log_dsn)
        try:
            return [decode(row.topic, row.state) for row in log.read_log(limit=1_000_000)]
        finally:
            log.close()

    def protocols(self) -> list[str]:
        """Of each message that was queued, which protocol brought it."""
        return [event.protocol for event in self.events() if isinstance(event, MessageQueued)]

    def refused(self) -> list[RefusedCommands]:
        """What the edges recorded of the commands that they refused, summed up and sorted."""
        entries: dict[tuple[str, ...], RefusedCommands] = {}
        for event in self.events():
            for new in event.refusals if isinstance(event, RefusalsCounted) else ():
                key = (new.protocol, new.command, new.reason, new.sender_did)
                known = entries.get(key, msgspec.structs.replace(new, count=0))
                entries[key] = msgspec.structs.replace(
                    known, count=known.count + new.count, last_ms=new.last_ms
                )
        return [entry for _, entry in sorted(entries.items())]

    # ---- plain HTTP

    @property
    def http(self) -> aiohttp.ClientSession:
        """The client's connections."""
        assert self._session is not None
        return self._session

    def url(self, path: str = "/", edge: int = 0) -> str:
        """The address of a path on one of the edges."""
        return f"http://127.0.0.1:{self.ports[edge]}{path}"

    async def request(self, method: str, path: str, *, edge: int = 0, **options: Any) -> Answer:
        """Any request; the path is sent as it is."""
        target = URL(self.url(path, edge), encoded=True)
        async with self.http.request(method, target, **options) as response:
            return Answer(response.status, response.headers, await response.read())

    async def operate(
        self, path: str, method: str = "GET", *, token: str | None = None, **options: Any
    ) -> Answer:
        """A request of an operator, where they are answered, with their token or another."""
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        headers |= options.pop("headers", {})
        url = f"http://127.0.0.1:{self.edges[0].operators_port}{path}"
        target = URL(url, encoded=True)
        async with self.http.request(method, target, headers=headers, **options) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, **options: Any) -> Answer:
        """GET."""
        return await self.request("GET", path, **options)

    async def post(self, body: bytes | Json, **options: Any) -> Answer:
        """POST / with a body, JSON or not."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        return await self.request("POST", "/", data=data, **options)

    # ---- commands

    def nonce(self) -> str:
        """A fresh UUID v4, in counting order."""
        return f"00000000-0000-4000-8000-{next(self._nonces):012x}"

    def command(
        self,
        sender: Identity,
        payload: Any,
        *,
        to: Identity | str = MEDIATOR_DID,
        channel: str = "DIRECT_AUTHENTICATED",
        **header: Any,
    ) -> Json:
        """A signed command; ``header`` replaces or adds members before it is signed."""
        signable = {
            "header": {
                "channel": channel,
                "sender_did": sender.did,
                "sender_signing_key_id": sender.key_id,
                "recipient_did": to if isinstance(to, str) else to.did,
                "timestamp": self.clock.now_ms,
                "nonce": self.nonce(),
                **header,
            },
            "payload": payload,
        }
        return {**signable, "signature": sender.sign(signable)}

    async def send(
        self, sender: Identity, payload: Any, *, edge: int = 0, **options: Any
    ) -> Answer:
        """Sign a command and post it."""
        return await self.post(self.command(sender, payload, **options), edge=edge)

    async def do(self, sender: Identity, kind: str, **members: Any) -> Answer:
        """A DIRECT_AUTHENTICATED command to the mediator, by its type."""
        return await self.send(sender, {"type": kind, **members})

    async def register(self, *identities: Identity, lifetime_s: float = DAY_S) -> None:
        """Register identities for ``lifetime_s``."""
        for identity in identities:
            answer = await self.send(identity, self.registration(identity, lifetime_s))
            assert answer.status == 200, answer.body

    def registration(self, identity: Identity, lifetime_s: float = DAY_S, **members: Any) -> Json:
        """A registration that ends ``lifetime_s`` from now."""
        expires_at = self.clock.now_s + lifetime_s
        return registration(identity, MEDIATOR_DID, KEYS.pre_public, expires_at, **members)

    async def befriend(
        self, owner: Identity, friend: Identity, lifetime_s: float = DAY_S, **members: Any
    ) -> Json:
        """``owner`` saves a contract that lets ``friend`` write to it; the contract."""
        expires_at = self.clock.now_s + lifetime_s
        contract = signed_contract(friend, owner, expires_at, **members)
        answer = await self.do(
            owner, "SAVE_COMMUNICATION_CONTRACT", signed_communication_contract=contract
        )
        assert answer.status == 200, answer.body
        return contract

    async def write(
        self, sender: Identity, recipient: Identity, text: str, **options: Any
    ) -> Answer:
        """A TWO_WAY_PRIVATE message."""
        return await self.send(sender, text, to=recipient, channel="TWO_WAY_PRIVATE", **options)

    async def delivered(self, sender: Identity, recipient: Identity, text: str) -> str:
        """A message that must be accepted; its id."""
        answer = await self.write(sender, recipient, text)
        assert answer.status == 200, answer.body
        message_id: str = answer.json["pendingEventId"]
        return message_id

    async def publish(self, publisher: Identity, event: str, **members: Any) -> Answer:
        """PUBLISH_PUBLIC_EVENT."""
        payload = public_event(publisher, event, **members)
        return await self.send(publisher, payload, channel="ONE_WAY_PUBLIC")

    async def records(self, identity: Identity, kind: str, **members: Any) -> list[Any]:
        """What a query gives, without its pagination."""
        payload = dict((await self.do(identity, kind, **members)).payload)
        payload.pop("pagination")
        (records,) = payload.values()
        assert isinstance(records, list)
        return records

    async def waiting(self, identity: Identity) -> list[str]:
        """The payloads of the messages that wait for an identity, oldest first."""
        return [event["payload"] for event in await self.records(identity, "QUERY_PENDING_EVENTS")]

    # ---- sockets

    def authenticate(self, identity: Identity, **members: Any) -> Json:
        """A signed AUTHENTICATE; ``members`` replaces what is signed."""
        signable = {
            "did": identity.did,
            "signing_key_id": identity.key_id,
            "timestamp": self.clock.now_ms,
            "nonce": self.nonce(),
            **members,
        }
        return {"type": "AUTHENTICATE", **signable, "signature": identity.sign(signable)}

    @asynccontextmanager
    async def upgrade(self, *, edge: int = 0, **options: Any) -> AsyncIterator[Socket]:
        """An open socket that has said nothing yet."""
        async with self.http.ws_connect(self.url("/ws", edge), **options) as raw:
            yield Socket(raw)

    @asynccontextmanager
    async def socket(self, identity: Identity, *, edge: int = 0) -> AsyncIterator[Socket]:
        """An authenticated socket."""
        async with self.upgrade(edge=edge) as socket:
            await socket.say(self.authenticate(identity))
            assert await socket.hear() == {"type": "AUTH_SUCCESS"}
            yield socket

    def _new_id(self) -> str:
        return f"id-{next(self._ids)}"


def _settings(data_dir: Path, settings: Json) -> Settings:
    limits = {"drain_s_max": 0.5, **settings.get("limits", {})}
    fixed = {
        "data_dir": data_dir,
        "listen": "127.0.0.1:0",
        "public_url": PUBLIC_URL,
        "did": MEDIATOR_DID,
    }
    made = Settings.model_validate({**fixed, **settings, "limits": limits})
    # All settings have the same object for a section of defaults; a test may change its own.
    return made.model_copy(deep=True)


class Socket:
    """A client's end of a WebSocket."""

    def __init__(self, raw: aiohttp.ClientWebSocketResponse) -> None:
        self.raw = raw

    async def say(self, message: Json | str | bytes) -> None:
        """Send JSON, a text, or a binary frame."""
        if isinstance(message, bytes):
            await self.raw.send_bytes(message)
        else:
            text = message if isinstance(message, str) else orjson.dumps(message).decode()
            await self.raw.send_str(text)

    async def hear(self) -> Any:
        """The next message, as JSON."""
        message = await self.raw.receive(WAIT_S)
        assert message.type is WSMsgType.TEXT, message
        return orjson.loads(message.data)

    async def closing(self) -> int:
        """The code that the server closes with; nothing may come before it."""
        message = await self.raw.receive(WAIT_S)
        assert message.type is WSMsgType.CLOSE, message
        assert isinstance(message.data, int)
        return message.data


async def silent_but(fence: Mapping[str, Any], *sockets: Socket) -> None:
    """Nothing came on these sockets before the fence that was just made to come."""
    for socket in sockets:
        assert await socket.hear() == fence
