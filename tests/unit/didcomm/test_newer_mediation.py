"""Coordinate mediation 2.0 and 3.0 over real identities: agents without a handshake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from actors.core.commands import Connect, FindKeyOwner, GrantMediation, QueryConnection
from actors.core.refusals import Refusal
from actors.core.replies import Connected
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key
from http_edge.didcomm.envelopes.messages import (
    AgentAccount,
    Json,
    Message,
    ProblemReport,
    Reply,
    read_type,
)
from http_edge.didcomm.envelopes.peer_dids import encode_peer2, encode_peer4, peer4_short
from http_edge.didcomm.envelopes.recipient_names import canonical_name, twins
from http_edge.didcomm.identities import speak_as
from http_edge.didcomm.protocols.coordinate_mediation import FORM_2, FORM_3, MediationForm
from http_edge.didcomm.protocols.problems import Problem
from http_edge.didcomm.protocols.protocol import Outcome, PeerState, Request
from tests.unit.didcomm.mediations import OWN_DID, OWN_DIDS, SETTINGS, mediation_family
from tests.unit.didcomm.requests import ALICE, NEW, Agents, agents_of, raw_key

ADDRESSED_TO: Final = "did:peer:2.Ez6LSaddressed"
KINDS: Final = {
    2: ("keylist-update", "keylist-query", "keylist", "keys"),
    3: ("recipient-update", "recipient-query", "recipient", "dids"),
}


def peer4(number: int) -> str:
    """A did:peer:4 in its long form; each number has another."""
    method = {
        "id": "#key-1",
        "type": "Ed25519VerificationKey2018",
        "publicKeyBase58": base58(raw_key(number)),
    }
    return encode_peer4({"verificationMethod": [method], "authentication": ["#key-1"]})


class Agent:
    """An agent whose account is known by the DID that it sends from."""

    def __init__(self, number: int) -> None:
        self.did = peer4(number)
        self.name = canonical_name(self.did) or ""
        self.account = AgentAccount(self.name, "v2", raw_key(number))


BOB, EVE = Agent(2_001), Agent(2_002)


class Mediation:
    """One version of the family, and agents that ask it."""

    def __init__(self, agents: Agents, form: MediationForm, **settings: Any) -> None:
        self.agents = agents
        self.major = form.major
        self.family = mediation_family(form, agents, **settings)
        self.update_name, self.query_name, self.listing, self.listed = KINDS[form.major]

    async def outcome(self, name: str, body: Json, agent: Agent = BOB, **members: Any) -> Outcome:
        kind = read_type(f"{NEW}coordinate-mediation/{self.major}.0/{name}")
        assert kind is not None
        asks = Message(
            "v2",
            kind,
            "ask-1",
            body,
            **{"sender_did": agent.did, "addressed_to": ADDRESSED_TO, **members},
        )
        request = Request(
            asks,
            agent.account,
            b"c" * 16,
            self.agents,
            "session-1",
            PeerState(routable=True),
        )
        return await self.family.handlers[name](request)

    async def reply(self, name: str, body: Json, agent: Agent = BOB, **members: Any) -> Reply:
        reply = (await self.outcome(name, body, agent, **members)).reply
        assert isinstance(reply, Reply), reply
        return reply

    async def code(self, name: str, body: Json, agent: Agent = BOB) -> str:
        """The code of the report that comes back."""
        report = (await self.outcome(name, body, agent)).reply
        assert isinstance(report, ProblemReport), report
        return report.code_2

    async def request(self, agent: Agent = BOB, **members: Any) -> Reply:
        return await self.reply("mediate-request", {}, agent, **members)

    async def update(self, *updates: tuple[str, str], agent: Agent = BOB) -> list[tuple[str, str]]:
        """What became of each update: recipient and result."""
        body: Json = {
            "updates": [{"recipient_did": did, "action": action} for action, did in updates]
        }
        reply = await self.reply(self.update_name, body, agent)
        assert reply.name == f"{self.update_name}-response"
        updated = cast("list[dict[str, str]]", reply.body["updated"])
        assert [item["action"] for item in updated] == [action for action, _ in updates]
        return [(item["recipient_did"], item["result"]) for item in updated]

    async def listing_of(self, agent: Agent = BOB, **members: Any) -> list[str]:
        reply = await self.reply(self.query_name, members, agent)
        assert reply.name == self.listing
        listed = cast("list[dict[str, str]]", reply.body[self.listed])
        return [item["recipient_did"] for item in listed]

    async def connection(self, agent: Agent = BOB) -> Connected | Refusal:
        return await self.agents.ask(agent.account.did, QueryConnection(), b"q" * 16, Connected)


@pytest.fixture(params=[FORM_2, FORM_3], ids=["2.0", "3.0"])
async def mediation(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mediation]:
    async with agents_of(tmp_path, didcomm=SETTINGS) as agents:
        yield Mediation(agents, request.param)


async def test_a_request_is_granted_the_did_that_it_was_addressed_to(mediation: Mediation) -> None:
    for _ in range(2):
        grant = await mediation.request()
        assert grant.name == "mediate-grant"
        dids = ADDRESSED_TO if mediation.major == 2 else [ADDRESSED_TO]
        assert grant.body == {"routing_did": dids}


async def test_a_request_that_is_addressed_to_a_hash_is_granted_what_a_sender_can_resolve(
    mediation: Mediation,
) -> None:
    hashed = {peer4_short(OWN_DIDS.peer4): OWN_DIDS.peer4}
    hashed[canonical_name(OWN_DIDS.peer2) or ""] = OWN_DIDS.peer2
    assert {did[:10] for did in hashed} == {"did:peer:3", "did:peer:4"}
    for did, whole in hashed.items():
        grant = await mediation.request(addressed_to=did)
        assert grant.body == {"routing_did": whole if mediation.major == 2 else [whole]}


@pytest.mark.parametrize("how", ["lost", "refused"])
async def test_no_account_is_made_while_it_is_not_known_whether_an_unproven_prior_matters(
    mediation: Mediation, how: str
) -> None:
    with mediation.agents.cut_off(QueryConnection, is_lost=how == "lost"):
        outcome = await mediation.outcome("mediate-request", {}, is_prior_unproven=True)
    assert outcome.to_retry is Problem.TRY_AGAIN
    assert await mediation.connection() is Refusal.NOT_CONNECTED


async def test_a_request_makes_the_account_and_registers_its_did(mediation: Mediation) -> None:
    assert await mediation.connection() is Refusal.NOT_CONNECTED
    await mediation.request()
    found = await mediation.connection()
    assert isinstance(found, Connected)
    assert found.mediated
    assert found.connection.peer_did == BOB.did
    assert found.connection.protocol == f"coordinate-mediation/{mediation.major}.0"
    assert await mediation.listing_of() == [BOB.name]


async def test_a_request_whose_answer_was_lost_is_granted_and_doubles_nothing(
    mediation: Mediation,
) -> None:
    mediation.agents.lost = {GrantMediation}
    assert await mediation.code("mediate-request", {}) == "e.m.me.try-again"
    mediation.agents.lost = set()
    await mediation.request()
    await mediation.request()
    assert await mediation.listing_of() == [BOB.name]


async def test_an_agent_that_has_connected_before_keeps_its_connection(
    mediation: Mediation,
) -> None:
    await mediation.agents.connect(ALICE)
    mediation.agents.seen.clear()
    alice = Agent(1)
    alice.account = AgentAccount(did_key(ALICE), "v1", ALICE)
    grant = await mediation.request(alice, sender_did="", addressed_to="")
    dids = OWN_DID if mediation.major == 2 else [OWN_DID]
    assert grant.body == {"routing_did": dids}
    assert not any(isinstance(command, Connect) for command in mediation.agents.seen)


@pytest.mark.parametrize(
    ("refusal", "counted"),
    [
        (Refusal.QUOTA_EXCEEDED, "quota-exceeded"),
        (Refusal.KEY_TAKEN, "key-taken"),
        (Refusal.NOT_SPEAKING, "did-rotated"),
    ],
)
async def test_a_denied_request_is_counted_with_its_reason(
    mediation: Mediation, refusal: Refusal, counted: str
) -> None:
    mediation.agents.refused[GrantMediation] = refusal
    denied = await mediation.outcome("mediate-request", {})
    assert isinstance(denied.reply, Reply)
    assert (denied.reply.name, denied.refused) == ("mediate-deny", counted)


@pytest.mark.parametrize("registration", ["closed", "allow_list", "invitation"])
async def test_whom_the_operator_does_not_take_is_denied_and_nothing_is_stored(
    mediation: Mediation, registration: str
) -> None:
    form = FORM_2 if mediation.major == 2 else FORM_3
    closed = Mediation(mediation.agents, form, registration=registration)
    denied = await closed.outcome("mediate-request", {})
    assert isinstance(denied.reply, Reply)
    assert denied.reply.name == "mediate-deny"
    assert denied.refused in {"not-open", "invitation-unknown"}
    assert not denied.may_wait
    assert await closed.connection() is Refusal.NOT_CONNECTED
    # Who is an agent already asks again whatever the operator has decided since.
    await mediation.request()
    assert (await closed.request()).name == "mediate-grant"


@pytest.mark.parametrize("spell", [lambda did: did, peer4_short], ids=["long", "short"])
async def test_the_allow_list_names_dids_in_either_form(mediation: Mediation, spell: Any) -> None:
    form = FORM_2 if mediation.major == 2 else FORM_3
    listed = Mediation(
        mediation.agents, form, registration="allow_list", allowed_keys=[spell(BOB.did)]
    )
    assert (await listed.request(BOB)).name == "mediate-grant"
    assert (await listed.request(EVE)).name == "mediate-deny"


async def test_what_is_there_is_added_with_success_in_the_clients_spelling(
    mediation: Mediation,
) -> None:
    await mediation.request()
    long, short = peer4(7), peer4_short(peer4(7))
    key = KeyPair.from_seed(b"k" * 32).public
    assert await mediation.update(
        ("add", long), ("add", short), ("add", long), ("add", did_key(key)), ("add", base58(key))
    ) == [
        (long, "success"),
        (short, "success"),
        (long, "success"),
        (did_key(key), "success"),
        (base58(key), "success"),
    ]
    assert await mediation.update(("add", short)) == [(short, "success")]


async def test_a_missing_recipient_is_removed_with_no_change(mediation: Mediation) -> None:
    await mediation.request()
    did = peer4(7)
    assert await mediation.update(("add", did), ("remove", did), ("remove", did)) == [
        (did, "success"),
        (did, "success"),
        (did, "no_change"),
    ]


async def test_a_recipient_of_another_and_what_is_none_are_the_clients_error(
    mediation: Mediation,
) -> None:
    await mediation.request(BOB)
    await mediation.request(EVE)
    did, key = peer4(7), KeyPair.from_seed(b"k" * 32).public
    (image,) = twins(base58(key))
    await mediation.update(("add", did), ("add", did_key(key)), agent=BOB)
    refused = [did, image, "no DID", OWN_DID]
    updated = await mediation.update(*(("add", each) for each in refused), agent=EVE)
    assert updated == [(each, "client_error") for each in refused]
    assert await mediation.listing_of(EVE) == [EVE.name]


async def test_no_key_is_taken_on_its_other_curve_while_its_owner_cannot_be_found(
    mediation: Mediation,
) -> None:
    await mediation.request(BOB)
    await mediation.request(EVE)
    key = did_key(KeyPair.from_seed(b"k" * 32).public)
    (image,) = twins(canonical_name(key) or "")
    assert await mediation.update(("add", key), agent=BOB) == [(key, "success")]
    with mediation.agents.cut_off(FindKeyOwner, is_lost=False):
        assert await mediation.update(("add", image), agent=EVE) == [(image, "server_error")]
    assert await mediation.update(("add", image), agent=EVE) == [(image, "client_error")]
    assert await mediation.listing_of(EVE) == [EVE.name]


async def test_only_an_update_that_changed_nothing_is_a_refusal(mediation: Mediation) -> None:
    await mediation.request(BOB)
    await mediation.request(EVE)
    for dids, refused in (([BOB.name, peer4(7)], ""), ([BOB.name], "client_error")):
        body: Json = {"updates": [{"recipient_did": did, "action": "add"} for did in dids]}
        assert (await mediation.outcome(mediation.update_name, body, EVE)).refused == refused


async def test_a_sender_takes_back_the_names_whose_keys_it_holds(mediation: Mediation) -> None:
    await mediation.request(BOB)
    await mediation.request(EVE)
    key = KeyPair.from_seed(b"k" * 32).public
    (image,) = twins(base58(key))
    for name, sender, speaker in (
        (EVE.did, EVE.did, ""),
        (EVE.did, "", EVE.account.did),
        (image, did_key(key), ""),
    ):
        speak_as("")
        # By another DID of hers: what she removes of her own stays hers.
        gone: Json = {"updates": [{"recipient_did": name, "action": "remove"}]}
        await mediation.reply(mediation.update_name, gone, EVE, sender_did=did_key(key))
        assert await mediation.update(("add", name), agent=BOB) == [(name, "success")]
        speak_as(speaker)
        body: Json = {"updates": [{"recipient_did": name, "action": "add"}]}
        reply = await mediation.reply(mediation.update_name, body, EVE, sender_did=sender)
        assert reply.body["updated"] == [
            {"recipient_did": name, "action": "add", "result": "success"}
        ]
    assert await mediation.listing_of(BOB) == [BOB.name]


async def test_recipients_are_listed_in_pages(mediation: Mediation) -> None:
    await mediation.request()
    await mediation.update(("add", peer4(7)), ("add", peer4(8)))
    page = {"paginate": {"limit": 2, "offset": 0}}
    reply = await mediation.reply(mediation.query_name, cast("Json", page))
    assert reply.body["pagination"] == {"count": 2, "offset": 0, "remaining": 1}
    everything = await mediation.reply(mediation.query_name, {})
    assert "pagination" not in everything.body


async def test_a_stranger_is_refused_as_not_enrolled(mediation: Mediation) -> None:
    assert await mediation.code(mediation.query_name, {}) == "e.p.req.not_enroll"
    assert await mediation.code(mediation.update_name, {"updates": []}) == "e.p.req.not_enroll"


async def test_an_agent_whose_did_is_too_long_for_a_name_is_granted_mediation_without_one(
    mediation: Mediation,
) -> None:
    agent = Agent(2_001)
    agent.did = "did:web:agent.example" + 200 * ":a"
    assert (await mediation.request(agent)).name == "mediate-grant"
    assert await mediation.listing_of(agent) == []


def with_services(*endpoints: object) -> Agent:
    """An agent whose DID has services with these endpoints."""
    method = {
        "id": "#key-1",
        "type": "Ed25519VerificationKey2018",
        "publicKeyBase58": base58(raw_key(9)),
    }
    agent = Agent(2_001)
    agent.did = encode_peer4(
        {
            "verificationMethod": [method],
            "authentication": ["#key-1"],
            "service": [
                {
                    "id": f"#service-{number}",
                    "type": "DIDCommMessaging",
                    "serviceEndpoint": endpoint,
                }
                for number, endpoint in enumerate(endpoints)
            ],
        }
    )
    return agent


MEDIATOR = encode_peer2(
    [raw_key(77)],
    [{"type": "DIDCommMessaging", "serviceEndpoint": {"uri": "https://far.example/in"}}],
)


@pytest.mark.parametrize(
    ("endpoints", "endpoint", "routing_keys"),
    [
        ([], "", []),
        ([{"uri": "https://bob.example/in"}], "https://bob.example/in", []),
        ([{"uri": "didcomm:transport/queue"}, "wss://bob.example"], "wss://bob.example", []),
        ([{"uri": ""}], "", []),
        (
            [{"uri": "https://a.example", "routingKeys": ["did:example:a#1", "did:example:b#1"]}],
            "https://a.example",
            ["did:example:b#1", "did:example:a#1"],
        ),
        ([{"uri": MEDIATOR}], "https://far.example/in", [MEDIATOR]),
        ([{"uri": "https://Mediator.Example/didcomm"}], "", []),
        ([{"uri": "wss://mediator.example:443/didcomm"}], "", []),
        ([{"uri": OWN_DIDS.peer2}], "", []),
        ([{"uri": OWN_DIDS.peer4_short}], "", []),
        ([{"uri": "https://a.example", "routingKeys": [f"{OWN_DIDS.peer4}#key-2"]}], "", []),
    ],
)
async def test_an_agent_is_sent_to_where_its_document_says_unless_that_leads_back(
    mediation: Mediation, endpoints: list[object], endpoint: str, routing_keys: list[str]
) -> None:
    agent = with_services(*endpoints)
    await mediation.request(agent)
    found = await mediation.connection(agent)
    assert isinstance(found, Connected)
    assert (found.connection.endpoint, found.connection.routing_keys) == (endpoint, routing_keys)
