"""A real HTTP server that keeps what it receives and answers in the shapes of DCTRL-0004.

It verifies every envelope as section 6.2 says, answers by command type (or by the next item of
``script``), and refuses a nonce that it has seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from aiohttp import web
from aiohttp.test_utils import TestServer

from http_edge.clients.decentrl.contracts import resolve
from http_edge.crypto.mediator_keys import MediatorKeys
from http_edge.crypto.signatures import verify_object
from http_edge.crypto.strict_json import parse
from http_edge.dids.contract_profile import ContractRejection, accept_registration, open_request
from http_edge.dids.document import DidDocument, signing_key_id
from http_edge.dids.own_document import mediator_document

Json: TypeAlias = dict[str, Any]
Answer: TypeAlias = Callable[[web.Request, Json], web.Response]
SocketScript: TypeAlias = Callable[[web.WebSocketResponse], Awaitable[None]]


def success(**members: object) -> Answer:
    return lambda _request, _command: web.json_response({"type": "SUCCESS", **members})


def error(code: str, status: int, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _request, _command: web.json_response(
        {"type": "ERROR", "code": code}, status=status, headers=named
    )


def plain(status: int, text: str) -> Answer:
    return lambda _request, _command: web.Response(status=status, text=text)


def cut(request: web.Request, _command: Json) -> web.Response:
    """Break the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def page(name: str, items: list[Json], total: int | None = None) -> Answer:
    def answer(_request: web.Request, command: Json) -> web.Response:
        pagination = {**command["payload"]["pagination"], "total": total or len(items)}
        return web.json_response(
            {"type": "SUCCESS", "payload": {name: items, "pagination": pagination}}
        )

    return answer


class ScriptedMediator:
    def __init__(self, did: str = "did:web:mediator.test") -> None:
        self.did = did
        self.keys = MediatorKeys(bytes(31) + b"\x07", bytes(31) + b"\x08")
        self.received: list[Json] = []
        self.queries: list[web.Request] = []
        self.script: deque[Answer] = deque()
        self.by_type: dict[str, Answer] = {
            "REQUEST_COMMUNICATION_CONTRACT": self._request,
            "QUERY_COMMUNICATION_CONTRACTS": page("communication_contracts", []),
        }
        self.public: Json = {}
        self.healthy = True
        self.sockets: deque[SocketScript] = deque()
        self.authenticated: list[Json] = []
        self._nonces: set[str] = set()
        app = web.Application()
        app.router.add_get("/", self._document)
        app.router.add_get("/health", self._health)
        app.router.add_get("/public/{did}", self._public)
        app.router.add_get("/ws", self._ws)
        app.router.add_post("/", self._post)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        return str(self.server.make_url("")).rstrip("/")

    @property
    def types(self) -> list[str]:
        """The received commands by type; a message is known by its channel."""
        return [
            command["payload"]["type"]
            if isinstance(command["payload"], dict)
            else command["header"]["channel"]
            for command in self.received
        ]

    @property
    def document(self) -> DidDocument:
        keys = {signing_key_id(self.did): self.keys.signing_public}
        return DidDocument(self.did, keys, self.keys.pre_public)

    def answer(self, command_type: str, answer: Answer) -> None:
        self.by_type[command_type] = answer

    async def _document(self, _request: web.Request) -> web.Response:
        return web.json_response(mediator_document(self.did, self.url, self.keys))

    async def _health(self, _request: web.Request) -> web.Response:
        if self.healthy:
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "error", "detail": "log: disk full"}, status=503)

    async def _public(self, request: web.Request) -> web.Response:
        self.queries.append(request)
        if self.script:
            return self.script.popleft()(request, {})
        return web.json_response({"type": "SUCCESS", "payload": self.public})

    async def _post(self, request: web.Request) -> web.Response:
        command = parse(await request.read())
        assert isinstance(command, dict)
        header = command["header"]
        self.received.append(command)
        if header["nonce"] in self._nonces:
            return error("DUPLICATE_NONCE", 401)(request, command)
        self._nonces.add(header["nonce"])
        sender = resolve(header["sender_did"])
        assert sender is not None
        signed = {"header": header, "payload": command["payload"]}
        key = sender.signing_keys[header["sender_signing_key_id"]]
        if not verify_object(key, signed, command["signature"]):
            return error("INVALID_SIGNATURE", 401)(request, command)
        if self.script:
            return self.script.popleft()(request, command)
        return self.by_type.get(self.types[-1], success())(request, command)

    def _request(self, request: web.Request, command: Json) -> web.Response:
        if command["header"]["recipient_did"] != self.did:
            return success(code="REQUESTED")(request, command)
        payload = command["payload"]
        opened = open_request(
            payload["encrypted_contract_request"],
            payload["requestor_ephemeral_public_key"],
            self.keys.pre_private,
            0,
        )
        sender, seed = command["header"]["sender_did"], self.keys.signing_seed
        accepted = (
            opened
            if isinstance(opened, ContractRejection)
            else accept_registration(opened, self.did, sender, seed, resolve, bytes_max=16_384)
        )
        if isinstance(accepted, ContractRejection):
            return error("INVALID_COMMAND", 400)(request, command)
        return success(
            code="MEDIATOR_REGISTRATION_SUCCESS",
            payload={"signed_communication_contract": accepted.signed},
        )(request, command)

    async def _ws(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        message = parse((await socket.receive_str()).encode())
        assert isinstance(message, dict)
        self.authenticated.append(message)
        await self.sockets.popleft()(socket)
        await socket.close()
        return socket
