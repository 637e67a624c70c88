"""Attacks by registered identities: commands that are signed, allowed, and costly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import chain, count, cycle
from typing import Final

import msgspec

from http_edge.clients.decentrl import Account, Channel, Identity, signed_command
from http_edge.clients.decentrl.records import EventToSave
from http_edge.clients.load.decentrl_agents import DecentrlAgents
from http_edge.settings.settings import Settings
from tests.attacks.attack import Attack
from tests.attacks.target import SOURCES, Target

_SIDE: Final = 63
"""Tags of an event, and events, of a command that was the costliest one; see ``_shared_out``."""
_EVENTS: Final = 1_000
_EVENT_BYTES: Final = 65_536
_TAGS: Final = 1_000
_SAVING_AT_ONCE: Final = 4
_FILLING_BYTES: Final = 100_000
_LARGE_RECORDS: Final = 240
"""So many of ``_EVENT_BYTES`` are just below ``limits.page_bytes_max``."""
_MEMBERS: Final = 10
_MANY: Final = 160
_NOW_S: Final = 1_700_000_000


def signed(
    identity: Identity, recipient_did: str, payload: Mapping[str, object] | str, channel: Channel
) -> bytes:
    """A command that is signed now."""
    return signed_command(
        identity,
        channel,
        recipient_did,
        payload,
        now_ms=SOURCES.now_ms(),
        nonce=SOURCES.new_nonce(),
    )


async def made_ready(
    account: Account, payloads: Iterator[Mapping[str, object]], number: int
) -> Iterator[bytes]:
    """So many commands to the mediator, signed before they are sent: signing costs time too."""
    did, identity = (await account.mediator.document()).did, account.identity
    direct = Channel.DIRECT_AUTHENTICATED
    return iter([signed(identity, did, next(payloads), direct) for _ in range(number)])


def event(owner: str, number: int, tags: Sequence[str], payload: str = "x") -> EventToSave:
    """A saved event of an owner."""
    return EventToSave(
        sender_did=owner,
        recipient_did=owner,
        timestamp_s=_NOW_S + number,
        payload=payload,
        encrypted_tags=list(tags),
    )


def saving(events: Sequence[EventToSave]) -> dict[str, object]:
    """SAVE_EVENTS."""
    return {"type": "SAVE_EVENTS", "events": msgspec.to_builtins(events)}


def _tags(turn: int, event_number: int) -> list[str]:
    """Tags as long as a signature in base64; none is like another."""
    return [f"{turn}-{event_number}-{tag}".ljust(88, "t") for tag in range(_SIDE)]


def _shared_out(per_s: float) -> tuple[int, float]:
    """Events in a command, and commands a second, for as many tags as 63 x 63 at this rate."""
    events = min(_SIDE, Settings().limits.tags_per_command_max // _SIDE)
    return events, per_s * _SIDE / events


async def updating_tags(target: Target) -> AsyncIterator[None]:
    """Replace all tags of as many events as one command may."""
    (events, per_s), account = _shared_out(10), await target.registered()
    did = account.identity.did
    await account.save_events([event(did, number, ["a"]) for number in range(events)])
    ids = [found.id for found in (await account.query_events(page_size=events)).items]

    def payloads() -> Iterator[Mapping[str, object]]:
        for turn in count():
            updates = [
                {"event_id": event_id, "encrypted_tags": _tags(turn, number)}
                for number, event_id in enumerate(ids)
            ]
            yield {"type": "UPDATE_EVENT_TAGS", "events": updates}

    bodies = await made_ready(account, payloads(), _number(target, per_s))
    yield
    await target.flood(per_s, bodies)


async def saving_tags(target: Target) -> AsyncIterator[None]:
    """Save events with as many tags as one command may have."""
    (events, per_s), account = _shared_out(15), await target.registered()
    did = account.identity.did
    payloads = (
        saving([event(did, number, _tags(turn, number)) for number in range(events)])
        for turn in count()
    )
    bodies = await made_ready(account, payloads, _number(target, per_s))
    yield
    await target.flood(per_s, bodies)


async def saving_events(target: Target) -> AsyncIterator[None]:
    """Save a thousand events at once."""
    per_s, account = 5, await target.registered()
    did = account.identity.did
    payloads = (
        saving([event(did, turn * _EVENTS + n, ["a"]) for n in range(_EVENTS)]) for turn in count()
    )
    bodies = await made_ready(account, payloads, _number(target, per_s))
    yield
    await target.flood(per_s, bodies)


async def saving_bytes(target: Target) -> AsyncIterator[None]:
    """Save payloads that are as long as they may be, several at once."""
    per_s, account = 20, await target.registered()
    did = account.identity.did
    events = [event(did, number, [], "x" * _EVENT_BYTES) for number in range(8)]
    bodies = await made_ready(account, cycle([saving(events)]), _number(target, per_s))
    yield
    await target.flood(per_s, bodies)


async def querying_tags(target: Target) -> AsyncIterator[None]:
    """Ask for the last page of what sixteen tags match in a long history."""
    per_s, account = 50, await target.registered()
    did, total = account.identity.did, target.options.events
    firsts = iter(range(0, total, _EVENTS))

    async def save() -> None:
        for first in firsts:
            numbers = range(first, min(total, first + _EVENTS))
            await account.save_events(
                [event(did, number, [f"tag-{number % _TAGS}"]) for number in numbers]
            )

    await asyncio.gather(*[save() for _ in range(_SAVING_AT_ONCE)])
    wanted = [f"tag-{number}" for number in range(16)]
    matches = total * len(wanted) // _TAGS
    query = {
        "type": "QUERY_EVENTS",
        "filter": {"encrypted_tags": wanted},
        "pagination": {"page": max(0, matches // 10 - 1), "page_size": 10},
    }
    bodies = await made_ready(account, cycle([query]), _number(target, per_s))
    yield
    await target.flood(per_s, bodies)


async def requesting_contracts(target: Target) -> AsyncIterator[None]:
    """Knock at one victim with requests as long as they may be."""
    per_s, account = 200, await target.registered()
    victim = await target.registered("victim")
    request = "A" * 30_000
    payload = {
        "type": "REQUEST_COMMUNICATION_CONTRACT",
        "encrypted_contract_request": request,
        "requestor_ephemeral_public_key": "A" * 43 + "=",
    }
    direct, did = Channel.DIRECT_AUTHENTICATED, victim.identity.did
    identity = account.identity
    bodies = (signed(identity, did, payload, direct) for _ in count())
    yield
    await target.flood(per_s, bodies)


async def registering(target: Target) -> AsyncIterator[None]:
    """Register one new identity after the other, each as any newcomer may."""
    client = await target.client()
    did = (await client.document()).did
    yield

    async def once() -> None:
        account = client.as_(Identity.create("many", did))
        await account.register(expires_at_s=SOURCES.now_ms() // 1000 + 86_400)
        target.answers["accepted"] += 1

    await target.repeat(200, once)


async def acknowledging_nothing(target: Target) -> AsyncIterator[None]:
    """Acknowledge a thousand messages that there never were."""
    per_s, account = 100, await target.registered()
    ids = [SOURCES.new_nonce() for _ in range(_EVENTS)]
    payload: dict[str, object] = {"type": "ACKNOWLEDGE_PENDING_EVENTS", "event_ids": ids}
    bodies = await made_ready(account, cycle([payload]), _number(target, per_s))
    yield
    await target.flood(per_s, bodies)


async def claiming_nonces(target: Target) -> AsyncIterator[None]:
    """Ask for nothing, as several members of the honest sender's shard, as often as each may."""
    per_s, accounts = 150, [await target.registered(f"member {n}") for n in range(_MEMBERS)]
    query: dict[str, object] = {
        "type": "QUERY_PENDING_EVENTS",
        "filter": {},
        "pagination": {"page": 9, "page_size": 1},
    }
    of_each = [
        await made_ready(account, cycle([query]), _number(target, per_s)) for account in accounts
    ]
    yield
    await target.flood(per_s * _MEMBERS, chain.from_iterable(zip(*of_each, strict=True)))


async def saving_from_many(target: Target) -> AsyncIterator[None]:
    """Save what is just cheap enough not to travel alone, as so many that none exceeds its rate."""
    per_s, tags = 2_000 / _MANY, [f"{number:02}" for number in range(17)]
    of_each = []
    for number in range(_MANY):
        account = await target.registered(f"one of many {number}")
        did = account.identity.did
        payloads = (saving([event(did, turn, tags)]) for turn in count())
        of_each.append(await made_ready(account, payloads, _number(target, per_s)))
    yield
    await target.flood(per_s * _MANY, chain.from_iterable(zip(*of_each, strict=True)))


async def reading_large_pages(target: Target) -> AsyncIterator[None]:
    """Ask for pages of megabytes of the own history, as large as one may be."""
    per_s, account = 20, await target.registered()
    did, payload = account.identity.did, "x" * _EVENT_BYTES
    for first in range(0, _LARGE_RECORDS, 8):
        await account.save_events([event(did, first + n, [], payload) for n in range(8)])
    query: dict[str, object] = {
        "type": "QUERY_EVENTS",
        "filter": {},
        "pagination": {"page": 0, "page_size": _LARGE_RECORDS},
    }
    bodies = await made_ready(account, cycle([query]), _number(target, per_s))
    yield
    await target.read_pages(per_s, bodies)


async def reading_large_queues(target: Target) -> AsyncIterator[None]:
    """Ask for half of what waits for oneself, as much as one sender may have queued."""
    agents = await DecentrlAgents.registered(await target.client(), 1)
    (pair,) = agents.pairs
    recipient, per_s = pair.recipient, 20
    for _ in range(2 * _LARGE_RECORDS):
        message = agents.message(pair, "x" * _EVENT_BYTES)
        await recipient.mediator.transport.post(message)
    query: dict[str, object] = {
        "type": "QUERY_PENDING_EVENTS",
        "filter": {},
        "pagination": {"page": 0, "page_size": _LARGE_RECORDS},
    }
    bodies = await made_ready(recipient, cycle([query]), _number(target, per_s))
    yield
    await target.read_pages(per_s, bodies)


async def filling_a_queue(target: Target) -> AsyncIterator[None]:
    """Fill the queue of the honest recipient, as a contact that turned on it."""
    known = target.options.known
    contact = Identity(known.contact_did, "", known.contact_seed, b"", b"")
    payload = "x" * _FILLING_BYTES
    bodies = (
        signed(contact, known.recipient_did, payload, Channel.TWO_WAY_PRIVATE) for _ in count()
    )
    yield
    await target.flood(100, bodies)


def _number(target: Target, per_s: float) -> int:
    """As many as can be sent, and a few more."""
    return int((target.options.seconds + 2) * per_s)


ATTACKS: Final = (
    Attack(
        name="update-tags",
        about="a registered stranger replaces tags, as many at once as it may",
        rate="39,690 tags/s",
        program=updating_tags,
    ),
    Attack(
        name="save-tags",
        about="a registered stranger saves events with tags, as many at once as it may",
        rate="59,535 tags/s",
        program=saving_tags,
    ),
    Attack(
        name="save-from-many",
        about="160 registered strangers of one address each save an event with 17 tags",
        rate="2,000/s",
        program=saving_from_many,
        long_ago=True,
    ),
    Attack(
        name="save-events",
        about="a registered stranger saves 1,000 events at once",
        rate="5/s",
        program=saving_events,
    ),
    Attack(
        name="save-bytes",
        about="a registered stranger saves 8 events of 64 KiB at once",
        rate="20/s",
        program=saving_bytes,
    ),
    Attack(
        name="query-tags",
        about="a registered stranger queries 16 tags of a long history, last page first",
        rate="50/s",
        program=querying_tags,
        long_ago=True,
    ),
    Attack(
        name="large-pages",
        about="a registered stranger reads pages of 15 MiB of its history",
        rate="20/s",
        program=reading_large_pages,
        long_ago=True,
    ),
    Attack(
        name="large-queue-pages",
        about="a registered stranger reads pages of 15 MiB of a queue of 30 MiB",
        rate="20/s",
        program=reading_large_queues,
        long_ago=True,
    ),
    Attack(
        name="contract-requests",
        about="a registered stranger knocks at one identity with 30 KB each time",
        rate="200/s",
        program=requesting_contracts,
    ),
    Attack(
        name="registrations",
        about="new identities register",
        rate="200/s",
        program=registering,
    ),
    Attack(
        name="filled-queue",
        about="a contact sends 100 KB each time to the honest recipient, who leaves them there",
        rate="100/s",
        program=filling_a_queue,
    ),
    Attack(
        name="empty-acknowledgements",
        about="a registered stranger acknowledges 1,000 unknown messages at once",
        rate="100/s",
        program=acknowledging_nothing,
    ),
    Attack(
        name="nonces-of-members",
        about="10 registered strangers query, in one shard with room for 16,000 nonces",
        rate="1,500/s",
        program=claiming_nonces,
        settings={"limits.nonces_per_shard_max": "16000", "shards": "1"},
    ),
)
