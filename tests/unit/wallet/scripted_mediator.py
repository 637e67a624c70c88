"""A DIDComm mediator over real sockets that keeps what it opens and answers by a script."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import orjson
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from http_edge.clients.didcomm.connection import open_for
from http_edge.didcomm.envelopes.keys import KeyPair, did_key
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json, read_type
from http_edge.didcomm.envelopes.signed import TEXT_TYPE, sign_attachment, sign_member
from http_edge.didcomm.envelopes.v1.envelope import pack
from http_edge.didcomm.envelopes.v1.plaintext import write_attachment
from http_edge.didcomm.protocols.handshake import MediatorDocuments

Said: TypeAlias = Json | bytes
Answer: TypeAlias = Callable[[Json], list[Said]]
"""What goes back for a message: messages, which are packed, and raw envelopes."""

SERVICE = KeyPair.from_seed(b"m" * 32)
STRANGER = KeyPair.from_seed(b"x" * 32)


def reply(name: str, **members: object) -> Answer:
    """A message of the same protocol in the thread of the question."""

    def answer(message: Json) -> list[Said]:
        return [in_thread(message, name, **members)]

    return answer


def in_thread(message: Json, name: str, **members: object) -> Json:
    protocol = str(message["@type"]).rpartition("/")[0]
    thread = {"thid": thread_of(message)}
    return {"@type": f"{protocol}/{name}", "@id": "reply", "~thread": thread, **members}


def thread_of(message: Json) -> object:
    thread = message.get("~thread")
    return thread.get("thid") if isinstance(thread, dict) else message["@id"]


def problem(code: str, text: str) -> Json:
    description = {"code": code, "en": text}
    return {
        "@type": NEW_PREFIX + "report-problem/1.0/problem-report",
        "@id": "report",
        "description": description,
    }


class ScriptedMediator:
    def __init__(self) -> None:
        self.received: list[Json] = []
        self.forwarded: list[bytes] = []
        self.answers: dict[str, deque[Answer]] = {}
        self.signer = SERVICE
        self.packer = SERVICE
        self.status = 202
        self.headers: dict[str, str] = {}
        self.answers_pings = True
        app = web.Application()
        app.router.add_get("/invitation", self._invitation)
        app.router.add_post("/didcomm", self._post)
        app.router.add_get("/didcomm", self._socket)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        return str(self.server.make_url("/didcomm"))

    @property
    def documents(self) -> MediatorDocuments:
        return MediatorDocuments(SERVICE, self.url)

    @property
    def names(self) -> list[str]:
        """The messages that were received, by name."""
        return [str(message["@type"]).rpartition("/")[2] for message in self.received]

    def invitation(self) -> Json:
        return {
            "@type": NEW_PREFIX + "out-of-band/1.1/invitation",
            "@id": "invitation-1",
            "label": "Scripted",
            "handshake_protocols": [NEW_PREFIX + "didexchange/1.1"],
            "services": [
                {
                    "id": "#inline",
                    "type": "did-communication",
                    "recipientKeys": [did_key(SERVICE.public)],
                    "serviceEndpoint": self.url,
                }
            ],
        }

    def answer(self, kind: str, *answers: Answer) -> None:
        """Answer messages of this type, without prefix, one after the other."""
        self.answers.setdefault(kind, deque()).extend(answers)

    def response(self, request: Json) -> Json:
        """A proper response to the request of either handshake."""
        kind = read_type(request["@type"])
        assert kind is not None
        documents = self.documents
        members: Json
        if kind.family == "connections":
            did, document = documents.legacy_did, documents.legacy_document()
            connection: Json = {"DID": did, "DIDDoc": document}
            members = {"connection~sig": sign_member(connection, self.signer, 1_800_000_000)}
        elif str(request["did"]).startswith("did:peer:4"):
            rotated = write_attachment(
                sign_attachment(documents.peer4.encode(), self.signer, media_type=TEXT_TYPE)
            )
            members = {"did": documents.peer4, "did_rotate~attach": rotated}
        elif str(request["did"]).startswith("did:peer:2"):
            members = {"did": documents.peer2}
        else:
            document = documents.legacy_document()
            attached = write_attachment(sign_attachment(orjson.dumps(document), self.signer))
            members = {"did": documents.legacy_did, "did_doc~attach": attached}
        return in_thread(request, "response", **members)

    async def _invitation(self, _request: web.Request) -> web.Response:
        return web.json_response(self.invitation())

    async def _post(self, request: web.Request) -> web.Response:
        said = self._said(await request.read())
        if not said:
            text = "refused" if self.status >= 400 else ""
            return web.Response(status=self.status, text=text, headers=self.headers)
        return web.Response(body=said[0])

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=self.answers_pings)
        await socket.prepare(request)
        async for frame in socket:
            if frame.type is WSMsgType.PING:
                continue
            body = frame.data.encode() if frame.type is WSMsgType.TEXT else frame.data
            for said in self._said(body):
                await socket.send_bytes(said)
            if self.names[-1] == "goodbye":
                await socket.close(code=1012)
        return socket

    def _said(self, body: bytes) -> list[bytes]:
        opened = open_for(SERVICE, body)
        assert opened is not None
        message, sender = opened
        self.received.append(message)
        if sender is None:
            self.forwarded.append(body)
            return []
        kind = str(message["@type"]).removeprefix(NEW_PREFIX)
        if kind.endswith("/request"):
            said: list[Said] = [self.response(message)]
        else:
            answers = self.answers.get(kind)
            said = answers.popleft()(message) if answers else []
        return [
            one if isinstance(one, bytes) else pack(orjson.dumps(one), [sender], self.packer)
            for one in said
        ]
