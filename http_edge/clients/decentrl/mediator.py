"""A mediator as a client sees it: its document, its health, its public events, other mediators."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, Self, TypeAlias, TypeVar
from urllib.parse import quote

import aiohttp

from http_edge.clients.decentrl.backoff import Backoff, repeated
from http_edge.clients.decentrl.contracts import resolve
from http_edge.clients.decentrl.errors import MediatorUnknown, NotAuthentic, UnexpectedAnswer
from http_edge.clients.decentrl.records import PAGE_SIZE, Page, PublicEvent, Seconds, each, page_of
from http_edge.clients.decentrl.transport import Transport, TransportLimits
from http_edge.clients.sources import Sources
from http_edge.crypto.signatures import verify_object
from http_edge.dids import decentrl
from http_edge.dids.document import DidDocument, read_document

_OK: Final = 200
Answer = TypeVar("Answer")

Resolver: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Finds the URL of the mediator with a DID, or None; supplied by the caller."""


class Mediator:
    """One mediator at one URL; use it as an async context manager.

    Args:
        url: Where it listens, e.g. ``https://mediator.example``.
        session: An aiohttp session to use; it stays open. Without it the client owns one.
        resolver: Finds other mediators by DID, so that messages reach identities there. Without
            it pass ``at=`` to the commands that cross mediators.
        sources: Time, ids, chance and waiting.
        backoff: The schedule by which commands are repeated.
        limits: Bounds on each exchange.
    """

    def __init__(
        self,
        url: str,
        *,
        session: aiohttp.ClientSession | None = None,
        resolver: Resolver | None = None,
        sources: Sources | None = None,
        backoff: Backoff | None = None,
        limits: TransportLimits | None = None,
    ) -> None:
        self.transport: Final = Transport(url, session=session, limits=limits)
        self.sources: Final = sources or Sources()
        self.backoff: Final = backoff or Backoff()
        self._resolver = resolver
        self._document: DidDocument | None = None
        self._others: dict[str, Self] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections that this client owns.

        Requests afterwards raise RuntimeError. Closing again does nothing.
        """
        for other in self._others.values():
            await other.close()
        await self.transport.close()

    async def document(self) -> DidDocument:
        """The mediator's DID document (DCTRL-0004 3.2), fetched once.

        Raises: MediatorUnreachable, OutcomeUnknown, UnexpectedAnswer.
        """
        if self._document is None:
            status, answer = await self._repeated(lambda: self.transport.get("/"))
            if status != _OK:
                raise UnexpectedAnswer(f"HTTP {status} instead of a DID document")
            self._document = mediator_document(answer)
        return self._document

    async def health(self) -> Mapping[str, object]:
        """The health answer (3.3): ``status`` is ``ok``, or ``error`` with a ``detail``.

        Raises: MediatorUnreachable, OutcomeUnknown, UnexpectedAnswer.
        """
        _, answer = await self.transport.get("/health")
        return answer

    async def of(self, did: str) -> Self:
        """The client of the mediator of ``did``, which a did:decentrl names.

        Raises:
            MediatorUnknown: the DID names no mediator, or one without a known address.
            UnexpectedAnswer: another mediator answers at that address.
        """
        own_did = (await self.document()).did
        mediator_did = did if did == own_did else decentrl.mediator_of(did)
        if mediator_did == own_did:
            return self
        if mediator_did is None:
            raise MediatorUnknown(f"{did} names no mediator; pass at=MediatorClient(...)")
        if mediator_did not in self._others:
            self._others[mediator_did] = await self._find(mediator_did)
        return self._others[mediator_did]

    async def _find(self, mediator_did: str) -> Self:
        url = await self._resolver(mediator_did) if self._resolver else None
        if url is None:
            raise MediatorUnknown(f"no address for {mediator_did}; pass at=MediatorClient(...)")
        other = type(self)(
            url,
            session=self.transport.session,
            resolver=self._resolver,
            sources=self.sources,
            backoff=self.backoff,
            limits=self.transport.limits,
        )
        found = (await other.document()).did
        if found != mediator_did:
            raise UnexpectedAnswer(f"{url} is {found}, not {mediator_did}")
        return other

    async def read_public(  # noqa: PLR0913 - the query parameters of DCTRL-0007
        self,
        did: str,
        *,
        channel_id: str | None = None,
        tags: Sequence[str] = (),
        after_s: Seconds | None = None,
        before_s: Seconds | None = None,
        page: int = 0,
        page_size: int = PAGE_SIZE,
    ) -> Page[PublicEvent]:
        """A page of a publisher's public events, newest first, each signature verified.

        Raises:
            NotAuthentic: the publisher did not sign one of the events.
            CommandRefused, MediatorUnreachable, OutcomeUnknown, UnexpectedAnswer.
        """
        query = [
            ("channel_id", channel_id),
            *(("tags", tag) for tag in _as_they_are(tags)),
            ("after_timestamp", after_s),
            ("before_timestamp", before_s),
            ("page", page),
            ("page_size", page_size),
        ]
        path = "/public/" + quote(did, safe="")
        where = [(name, str(value)) for name, value in query if value is not None]
        answer = await self._repeated(lambda: self.transport.query(path, where))
        events = page_of(answer, "events", PublicEvent)
        for event in events.items:
            _check_public(did, event)
        return events

    def public_events(
        self, did: str, *, channel_id: str | None = None
    ) -> AsyncIterator[PublicEvent]:
        """Iterate over all public events of a publisher (of one channel), newest first, verified.

        An event published meanwhile shifts the later pages by one: it may be missed, and another
        event may come twice.
        """
        return each(partial(self.read_public, did, channel_id=channel_id))

    async def _repeated(self, read: Callable[[], Awaitable[Answer]]) -> Answer:
        return await repeated(read, self.backoff, self.sources, repeat=True)


def _as_they_are(tags: Sequence[str]) -> Sequence[str]:
    """The tags for a query: a single one is doubled if it would be read as a list or no filter."""
    is_list = len(tags) == 1 and (not tags[0] or "," in tags[0])
    return [*tags, *tags] if is_list else tags


def mediator_document(answer: Mapping[str, object]) -> DidDocument:
    """The keys in a mediator's DID document.

    Raises:
        UnexpectedAnswer: the answer is no such document, or lacks a signing key or the pre-key.
    """
    document = read_document(str(answer.get("id")), answer)
    if document is None or not document.signing_keys or document.pre_key is None:
        raise UnexpectedAnswer("not a mediator's DID document")
    return document


def _check_public(did: str, event: PublicEvent) -> None:
    """Check the publisher's signature, which covers four members (DCTRL-0007 8)."""
    publisher = resolve(did)
    signed = {
        "channel_id": event.channel_id,
        "event": event.event,
        "tags": list(event.tags),
        "timestamp": event.timestamp_s,
    }
    keys = publisher.signing_keys.values() if publisher else ()
    if not any(verify_object(key, signed, event.event_signature) for key in keys):
        raise NotAuthentic(f"public event {event.id} is not signed by {did}")
