from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import orjson
import pytest
from base58 import b58encode
from hypothesis import given
from hypothesis import strategies as st

from actors.core.commands import QueueEnvelopes
from actors.core.refusals import Refusal
from http_edge.didcomm.envelopes import keys
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import Forward
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.recipient_names import canonical_name, x25519_name
from http_edge.didcomm.envelopes.v1.forward import read_forward
from http_edge.didcomm.protocols.keylists import KeyChanges
from tests.unit.didcomm.accounts import COMMAND, OLD_NAME, mediator_of
from tests.unit.didcomm.requests import ALICE, BOB, OLD, message

KIND = "routing/1.0/forward"
ENVELOPE = {"protected": "eyJ", "iv": "aXY", "ciphertext": "Y2k?>~", "tag": "dGFn"}
PACKED = orjson.dumps(ENVELOPE)
A, B = keys.base58(ALICE), keys.base58(BOB)
MULTIBASE = keys.did_key(ALICE).removeprefix("did:key:")


def read(to: Any = A, msg: Any = ENVELOPE, *, recipients_max: int = 3) -> Forward | None:
    return read_forward(message(KIND, to=to, msg=msg), recipients_max=recipients_max)


@pytest.mark.parametrize(
    "to",
    [
        A,
        keys.did_key(ALICE),
        keys.did_key_reference(ALICE),
        f"did:key:{A}",
        f"did:sov:BzCbsNYhMrjHiqZDTUASHg#{A}",
        f"did:peer:2.Ez6LS.Vz6Mk#{MULTIBASE}",
        f"did:peer:2.Ez6LS.Vz6Mk#{MULTIBASE[1:]}",
        f"did:web:example.com#{MULTIBASE}",
        [A],
        [A, keys.did_key(ALICE)],
    ],
)
def test_a_recipient_in_any_spelling_is_one_key(to: object) -> None:
    found = read(to)
    assert found is not None
    assert (found.recipients, found.payloads) == ([A], [PACKED])


def test_a_key_of_another_did_is_one_recipient_with_the_name_of_that_did_beside_it() -> None:
    url = f"{CAROL.peer2}#{MULTIBASE[1:]}"
    dids = {A: [canonical_name(CAROL.peer2) or ""]}
    for to in (url, [url, A], [A, url]):
        assert read(to) == Forward([A], [PACKED], dids=dids)
    assert read(f"did:sov:BzCbsNYhMrjHiqZDTUASHg#{A}") == Forward([A], [PACKED])


def test_a_key_of_several_dids_is_one_recipient_with_all_their_names_none_twice() -> None:
    names = [f"did:web:{host}.example" for host in "abc"]
    urls = [f"{name}#{MULTIBASE}" for name in (*names, names[0])]
    assert read([*urls, B], recipients_max=5) == Forward([A, B], [PACKED], dids={A: names})


def test_several_recipients_keep_their_order() -> None:
    assert read([keys.did_key(BOB), A, B]) == Forward([B, A], [PACKED])


CAROL = OwnDids(KeyPair.from_seed(b"c" * 32))
X25519 = x25519_name(bytes(31) + b"\t")


@pytest.mark.parametrize(
    ("to", "name"),
    [
        (CAROL.peer2, canonical_name(CAROL.peer2)),
        (f"{CAROL.peer2}#key-1", canonical_name(CAROL.peer2)),
        (CAROL.peer4, canonical_name(CAROL.peer4)),
        (canonical_name(CAROL.peer4), canonical_name(CAROL.peer4)),
        (f"did:peer:0{MULTIBASE}", A),
        (X25519, X25519),
        (f"{X25519}#{X25519.removeprefix('did:key:')}", X25519),
        ("did:web:Example.COM:bob#key-1", "did:web:example.com:bob"),
        ("did:example:1#", "did:example:1"),
        (["did:example:1", B], ["did:example:1", B]),
    ],
)
def test_a_recipient_that_is_named_by_a_did_has_its_short_name(to: object, name: Any) -> None:
    assert read(to) == Forward(name if isinstance(name, list) else [name], [PACKED])


@pytest.mark.parametrize(
    "to",
    [
        "",
        "unknown",
        "did:sov:BzCbsNYhMrjHiqZDTUASHg",
        "did:sov:BzCbsNYhMrjHiqZDTUASHg#key-1",
        f"did:example:1#{'1' * 10_000}",
        f"nothing#{A}",
        A + "1" * 40,
        "\N{FULLWIDTH DIGIT ONE}" * 44,
        [f"{b58encode(b'short').decode()}"],
        ["unknown", "did:sov:BzCbsNYhMrjHiqZDTUASHg"],
    ],
)
def test_a_name_that_none_can_register_names_no_recipient(to: object) -> None:
    assert read(to) == Forward([], [PACKED])


def test_a_name_that_none_can_register_does_not_keep_the_others_from_their_message() -> None:
    assert read(["unknown", B]) == Forward([B], [PACKED])


@pytest.mark.parametrize("to", [None, 1, True, {}, {"did": A}, [], [None], [A, 1], [[A]]])
def test_recipients_that_are_no_texts_are_refused(to: object) -> None:
    assert read(to) is None


def test_more_recipients_than_allowed_are_refused_and_none_is_left_out() -> None:
    assert read([A, A, A, A]) is None
    assert read([A, B], recipients_max=2) is not None
    assert read([A, B], recipients_max=1) is None


def _base64_forms(data: bytes) -> list[str]:
    forms = [base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()]
    return forms + [form.rstrip("=") for form in forms]


@pytest.mark.parametrize("msg", [ENVELOPE, PACKED.decode(), *_base64_forms(PACKED)])
def test_a_message_in_any_form_is_the_same_envelope(msg: object) -> None:
    assert read(msg=msg) == Forward([A], [PACKED])


def test_an_envelope_keeps_what_else_is_in_it() -> None:
    jwe = {**ENVELOPE, "recipients": [{"header": {"kid": "did:example:1#key"}}], "n": 1}
    forward = read(msg=jwe)
    assert forward is not None
    assert orjson.loads(forward.payloads[0]) == jwe


def test_the_text_of_an_envelope_is_not_written_anew() -> None:
    text = orjson.dumps(ENVELOPE, option=orjson.OPT_INDENT_2).decode()
    assert read(msg=text) == Forward([A], [text.encode()])


@pytest.mark.parametrize(
    "msg",
    [
        None,
        1,
        True,
        [],
        [ENVELOPE],
        {},
        "",
        "{",
        "{}",
        "null",
        "[]",
        "a sentence",
        "e30",
        "\N{SNOWMAN}",
        {"@type": "https://didcomm.org/trust_ping/1.0/ping", "@id": "1"},
        PACKED.decode()[:-1] + ',"iv":"twice"}',
        '"' + base64.b64encode(PACKED).decode() + '"',
        base64.b64encode(base64.b64encode(PACKED)).decode(),
    ],
)
def test_only_an_envelope_enters_a_queue(msg: object) -> None:
    assert read(msg=msg) is None


@pytest.mark.parametrize("member", ENVELOPE)
@pytest.mark.parametrize("value", [None, 1, "", {}, []])
def test_an_envelope_has_all_its_parts_as_texts(member: str, value: object) -> None:
    assert read(msg={**ENVELOPE, member: value}) is None
    assert read(msg={name: part for name, part in ENVELOPE.items() if name != member}) is None


def test_a_forward_of_the_older_spelling_is_read_as_well() -> None:
    old = message(KIND, OLD, to=A, msg=ENVELOPE)
    assert read_forward(old, recipients_max=1) == Forward([A], [PACKED])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


@given(to=_JSON, msg=_JSON)
def test_whatever_is_sent_is_read_or_refused(to: object, msg: object) -> None:
    forward = read(to, msg)
    assert forward is None or all(canonical_name(name) == name for name in forward.recipients)


async def test_envelopes_go_once_to_an_owner_of_several_of_their_names(tmp_path: Path) -> None:
    async with mediator_of(tmp_path) as mediator:
        account = await mediator.owner(OLD_NAME) or ""
        await mediator.keylists.change(account, COMMAND, KeyChanges([B], []))
        before, names = mediator.count(QueueEnvelopes), [OLD_NAME, B, "did:example:unknown"]
        envelopes = QueueEnvelopes("", [PACKED], 1)
        replies = await mediator.forwarding.forward_to_all(names, envelopes, b"m" * 16, {})
        assert len(replies) == 2
        assert Refusal.KEY_UNKNOWN in replies
        assert mediator.count(QueueEnvelopes) == before + 1
        assert await mediator.waiting(account) == 2
