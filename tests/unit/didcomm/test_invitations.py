from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_edge.crypto.encoding import b64decode, b64encode
from http_edge.didcomm.envelopes.agent_documents import (
    messaging_services,
    own_document,
    resolve_document,
)
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key, did_key_reference
from http_edge.didcomm.envelopes.messages import OLD_PREFIX
from http_edge.didcomm.protocols.invitations import (
    CODE_CHARS_MAX,
    ENCODED_CHARS_MAX,
    EXPIRES_S_MAX,
    LABEL_CHARS_MAX,
    PARAMETERS,
    Invitations,
    MediatorInvitation,
    Protocol,
)

KEY = KeyPair.from_seed(b"s" * 32)
OTHER = KeyPair.from_seed(b"t" * 32)
ENDPOINT = "https://mediator.example/didcomm"
BASE = "https://mediator.example"
NOW_S = 1_800_000_000

OURS = Invitations(KEY, "Poste", ENDPOINT)


def made(
    *, single_use: bool = False, expires_at_s: int | None = None, label: str | None = None
) -> MediatorInvitation:
    return OURS.make(
        single_use=single_use, expires_at_s=expires_at_s, label=label, new_id=lambda: "one"
    )


def encoded(message: object) -> str:
    return b64encode(json.dumps(message).encode())


@given(
    st.booleans(),
    st.none() | st.integers(min_value=1, max_value=EXPIRES_S_MAX),
    st.text(max_size=8),
)
def test_an_id_carries_its_terms_and_nothing_is_stored(
    single_use: bool, expires_at_s: int | None, unique: str
) -> None:
    invitation = OURS.make(
        single_use=single_use, expires_at_s=expires_at_s, label=None, new_id=lambda: unique
    )
    assert re.fullmatch("[A-Za-z0-9_-]{48}", invitation.terms.id)
    elsewhere = Invitations(KeyPair.from_seed(b"s" * 32), "another label", "https://b.example")
    terms = elsewhere.ids.read(invitation.terms.id)
    assert terms == invitation.terms
    assert terms is not None
    assert (terms.single_use, terms.expires_at_s) == (single_use, expires_at_s)


def test_ids_differ_by_what_makes_them_unique_and_by_their_terms() -> None:
    invitations = [
        made(),
        made(single_use=True),
        made(expires_at_s=NOW_S),
        made(expires_at_s=NOW_S + 1),
        OURS.make(single_use=False, expires_at_s=None, label=None, new_id=lambda: "two"),
        OURS.public(),
    ]
    assert len({each.terms.id for each in invitations if each is not None}) == len(invitations)


def test_no_bit_of_an_id_can_be_changed() -> None:
    """A single-use invitation does not become one for many, nor another one that is unused."""
    good = made(single_use=True, expires_at_s=NOW_S).terms.id
    whole = b64decode(good)
    for bit in range(len(whole) * 8):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        assert OURS.ids.read(b64encode(bytes(changed))) is None


@pytest.mark.parametrize("unique", [f"{n}" for n in range(16)])
def test_an_id_has_one_spelling(unique: str) -> None:
    """Else one invitation for one use would be as many as it has spellings."""
    invitation = OURS.make(
        single_use=True, expires_at_s=None, label=None, new_id=lambda: unique
    ).terms
    standard = invitation.id.replace("-", "+").replace("_", "/")
    for other in (standard, invitation.id + "=", invitation.id + "\n", " " + invitation.id):
        assert other == invitation.id or OURS.ids.read(other) is None


def test_what_this_mediator_did_not_make_is_no_invitation() -> None:
    theirs = Invitations(OTHER, "Poste", ENDPOINT)
    foreign = theirs.make(single_use=False, expires_at_s=None, label=None, new_id=lambda: "one")
    for text in (foreign.terms.id, "", "A" * 48, "é" * 48, "did:peer:2.Vz6Mk", "\x00" * 48):
        assert OURS.ids.read(text) is None


@given(st.text(min_size=46, max_size=50))
def test_no_text_is_an_invitation_by_chance(text: str) -> None:
    assert OURS.ids.read(text) is None


def test_an_invitation_ends_with_its_second() -> None:
    terms = made(expires_at_s=NOW_S).terms
    assert not terms.has_expired(NOW_S * 1000 - 1)
    assert terms.has_expired(NOW_S * 1000)
    assert not made().terms.has_expired(10**18)


def test_terms_are_written_in_words() -> None:
    assert made().terms.in_words() == "For any number of wallets, without expiry."
    terms = made(single_use=True, expires_at_s=NOW_S).terms
    assert terms.in_words() == "For one wallet, until 2027-01-15 08:00 UTC."
    assert "9999-12-31" in made(expires_at_s=EXPIRES_S_MAX).terms.in_words()


@pytest.mark.parametrize("expires_at_s", [0, -1, EXPIRES_S_MAX + 1])
def test_an_expiry_that_is_no_date_is_refused(expires_at_s: int) -> None:
    with pytest.raises(ValueError, match="years"):
        made(expires_at_s=expires_at_s)


@pytest.mark.parametrize("label", ["", "two\nlines", "x" * (LABEL_CHARS_MAX + 1), "\u202eevil"])
def test_a_label_that_is_not_fit_to_show_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match="label"):
        made(label=label)


def test_the_public_invitation_is_always_the_same_and_never_ends() -> None:
    public = OURS.public()
    assert public is not None
    assert public == Invitations(KEY, "Poste", ENDPOINT).public()
    assert OURS.ids.read(public.terms.id) == public.terms
    assert (public.terms.single_use, public.terms.expires_at_s) == (False, None)


def test_without_a_public_invitation_its_id_is_unknown_wherever_it_was_printed() -> None:
    printed = OURS.public()
    private = Invitations(KEY, "Poste", ENDPOINT, public=False)
    assert printed is not None
    assert private.public() is None
    assert private.ids.read(printed.terms.id) is None
    assert private.ids.read(made().terms.id) == made().terms


def test_the_out_of_band_invitation_has_one_service_and_all_handshakes() -> None:
    invitation = made(label="A café")
    assert invitation.message("out-of-band") == {
        "@type": "https://didcomm.org/out-of-band/1.1/invitation",
        "@id": invitation.terms.id,
        "label": "A café",
        "goal_code": "aries.vc.mediate",  # by which Bifold knows a mediator
        "goal": "Receive your messages through this mediator",
        "accept": ["didcomm/aip1", "didcomm/aip2;env=rfc19"],
        "handshake_protocols": [
            "https://didcomm.org/didexchange/1.1",
            "https://didcomm.org/didexchange/1.0",
            "https://didcomm.org/connections/1.0",
        ],
        "services": [
            {
                "id": "#inline",
                "type": "did-communication",
                "recipientKeys": [did_key(KEY.public)],
                "serviceEndpoint": ENDPOINT,
            }
        ],
    }


def test_the_connections_invitation_has_its_key_in_base58() -> None:
    invitation = made()
    assert invitation.message("connections") == {
        "@type": "https://didcomm.org/connections/1.0/invitation",
        "@id": invitation.terms.id,
        "label": "Poste",
        "recipientKeys": [base58(KEY.public)],
        "serviceEndpoint": ENDPOINT,
    }


def test_the_newer_out_of_band_invitation_names_a_did_with_both_services() -> None:
    invitation = made(label="A café")
    message = invitation.message("out-of-band-2")
    did = message.pop("from")
    assert message == {
        "type": "https://didcomm.org/out-of-band/2.0/invitation",
        "id": invitation.terms.id,
        "body": {
            "label": "A café",
            "goal_code": "request-mediate",
            "goal": "Receive your messages through this mediator",
            "accept": ["didcomm/v2"],
        },
    }
    assert isinstance(did, str)
    document = own_document(did)
    assert document is not None
    endpoints = [service.uri for service in messaging_services(document)]
    assert endpoints == [ENDPOINT, "wss://mediator.example/didcomm"]
    keys = resolve_document(did)
    assert keys is not None
    assert {key.raw for key in keys.authentication.values()} == {KEY.public}
    assert {key.raw for key in keys.agreement.values()} == {KEY.curve_public}


def test_one_url_is_for_both_generations_and_each_finds_its_own() -> None:
    invitation = made()
    named = parse_qsl(urlsplit(invitation.url(BASE, "out-of-band")).query)
    # Some wallets split the text at the newer parameter, so it stands last.
    assert [name for name, _ in named] == ["oob", "_oob"]
    first, second = (json.loads(b64decode(text)) for _, text in named)
    assert first == invitation.message("out-of-band")
    assert second == invitation.message("out-of-band-2")


@pytest.mark.parametrize("label", ["P", "Poste", "🐌" * LABEL_CHARS_MAX])
def test_a_qr_code_holds_the_long_url_unless_it_is_too_long(label: str) -> None:
    invitation = made(label=label)
    for protocol in PARAMETERS:
        long = invitation.url(BASE, protocol)
        fits = len(long) <= CODE_CHARS_MAX
        short = invitation.short_url(BASE, protocol)
        assert invitation.code_url(BASE, protocol) == (long if fits else short)
        assert len(short) <= CODE_CHARS_MAX
    is_short = len(label) < LABEL_CHARS_MAX
    assert (len(invitation.url(BASE, "out-of-band")) <= CODE_CHARS_MAX) is is_short


def test_urls_hold_the_whole_message_in_plain_ascii() -> None:
    invitation = made(label="A café 🐌")
    for url, parameter, message in (
        (invitation.url(BASE, "out-of-band"), "oob", invitation.message("out-of-band")),
        (invitation.url(BASE, "connections"), "c_i", invitation.message("connections")),
        (invitation.url(BASE, "out-of-band-2"), "_oob", invitation.message("out-of-band-2")),
    ):
        parts = urlsplit(url)
        assert parts.geturl().startswith(f"{BASE}/invitation?{parameter}=")
        (text,) = parse_qs(parts.query)[parameter]
        assert re.fullmatch("[A-Za-z0-9_-]+", text)
        assert b64decode(text).isascii()
        assert json.loads(b64decode(text)) == message


@pytest.mark.parametrize("protocol", PARAMETERS)
def test_an_invitation_of_ours_is_known_again_by_its_url(protocol: Protocol) -> None:
    invitation = made(single_use=True, expires_at_s=NOW_S, label="For Alice")
    text = dict(parse_qsl(invitation.query(protocol)))[PARAMETERS[protocol]]
    assert OURS.read(protocol, text) == invitation
    assert OURS.read(protocol, text + "=" * (-len(text) % 4)) == invitation
    for other in set(PARAMETERS) - {protocol}:
        assert OURS.read(other, text) is None
    assert Invitations(OTHER, "Poste", ENDPOINT).read(protocol, text) is None


def test_older_spellings_of_an_invitation_are_read() -> None:
    message = made().message("out-of-band")
    message["@type"] = OLD_PREFIX + "out-of-band/1.0/invitation"
    message["services"] = [{"recipientKeys": [did_key_reference(KEY.public)]}]
    assert OURS.read("out-of-band", encoded(message)) == made()


def test_nothing_that_others_write_into_an_invitation_is_kept() -> None:
    message = made().message("out-of-band")
    message |= {"goal": "Free money", "imageUrl": "https://evil.example"}
    message["services"] = [
        {"recipientKeys": [did_key(KEY.public)], "serviceEndpoint": "https://evil.example"}
    ]
    assert OURS.read("out-of-band", encoded(message)) == made()


@pytest.mark.parametrize(
    "change",
    [
        {"@type": "https://didcomm.org/out-of-band/2.0/invitation"},
        {"@type": "https://didcomm.org/out-of-band/1.1/handshake-reuse"},
        {"@type": None},
        {"@id": "another"},
        {"@id": None},
        {"@id": ["x"]},
        {"label": "Free money"},
        {"label": "\ud800"},
        {"label": None},
        {"services": []},
        {"services": None},
        {"services": ["did:sov:JNKL9kJxQi5pNCfA8QBXdJ"]},
        {"services": [{"recipientKeys": did_key(KEY.public)}]},
        {"services": [{"recipientKeys": [did_key(OTHER.public)]}]},
        {"services": {"recipientKeys": [did_key(KEY.public)]}},
    ],
    ids=str,
)
def test_a_message_that_is_not_ours_is_none(change: dict[str, object]) -> None:
    assert OURS.read("out-of-band", encoded(made().message("out-of-band") | change)) is None


@pytest.mark.parametrize(
    "text",
    ["", "!", "AAAA", encoded([]), encoded("text"), encoded({"@id": "x" * ENCODED_CHARS_MAX})],
)
def test_what_is_no_message_is_none(text: str) -> None:
    for protocol in PARAMETERS:
        assert OURS.read(protocol, text) is None
