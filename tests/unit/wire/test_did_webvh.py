"""did:webvh: the last state of a log that proves itself, and of no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from base58 import b58decode
from hypothesis import given
from hypothesis import strategies as st

from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.dids import webvh_proofs
from http_edge.dids.webvh import ENTRIES_MAX, KEYS_MAX, log_url, read_log, witness_url
from http_edge.settings.outgoing import DidWeb
from tests.examples import examples
from tests.unit.wire.did_log import DidLog, multihash, multikey, proof_of

ONE, TWO, THREE = (KeyPair.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
NOW_S = 1_790_000_000
STATE: dict[str, Any] = {"service": [], "controller": "{DID}"}
SCID = "QmP1perXqTHLPtd2XAXJbyfXm7VG4dA7ANRXAcfQWBEeUP"


def log(**parameters: Any) -> DidLog:
    made = DidLog("agent.example")
    made.add(STATE, ONE, updateKeys=[multikey(ONE)], **parameters)
    return made


def document(made: DidLog, did: str = "") -> dict[str, Any] | None:
    return read_log(did or made.did, made.text, NOW_S)


def test_the_state_of_the_last_entry_is_the_document() -> None:
    made = log()
    found = document(made)
    assert found == {"id": made.did, "service": [], "controller": made.did}
    made.add({"service": [{"id": "#new"}]}, ONE, at="2026-01-02T00:00:00Z")
    assert document(made) == {"id": made.did, "service": [{"id": "#new"}]}


def test_blank_lines_behind_the_entries_mean_nothing() -> None:
    made = log()
    assert read_log(made.did, made.text + b"\n\r\n", NOW_S) == document(made) is not None


def test_keys_are_followed_by_those_that_they_authorize() -> None:
    made = log()
    made.add(STATE, ONE, updateKeys=[multikey(TWO), multikey(THREE)])
    made.add(STATE, THREE)
    assert document(made) is not None
    made.add(STATE, ONE)
    assert document(made) is None


def test_an_entry_authorizes_and_announces_so_many_keys_and_no_more() -> None:
    others, hashed = [multikey(TWO)] * KEYS_MAX, [multihash(b"key")] * KEYS_MAX
    keys = [*others[1:], multikey(ONE)]
    made = log()
    made.add(STATE, ONE, updateKeys=keys, nextKeyHashes=hashed)
    assert document(made) is not None
    too_many: list[dict[str, Any]] = [
        {"updateKeys": [*others, *keys]},
        {"nextKeyHashes": [*hashed, hashed[0]]},
    ]
    for more in too_many:
        made = log()
        made.add(STATE, ONE, **more)
        assert document(made) is None


@pytest.mark.parametrize("none", [[], None], ids=["empty", "null, as early logs have it"])
def test_keys_that_were_announced_sign_what_authorizes_them(none: list[str] | None) -> None:
    made = log(nextKeyHashes=[multihash(multikey(TWO).encode())])
    made.add(STATE, TWO, updateKeys=[multikey(TWO)], nextKeyHashes=none)
    made.add(STATE, TWO, updateKeys=[multikey(THREE)])
    assert document(made) is not None


@pytest.mark.parametrize(
    ("signer", "keys"),
    [(ONE, None), (ONE, [ONE]), (THREE, [THREE]), (TWO, [TWO, THREE]), (TWO, [])],
)
def test_keys_that_were_not_announced_sign_nothing(
    signer: KeyPair, keys: list[KeyPair] | None
) -> None:
    made = log(nextKeyHashes=[multihash(multikey(TWO).encode())])
    named: dict[str, Any] = {} if keys is None else {"updateKeys": list(map(multikey, keys))}
    made.add(STATE, signer, nextKeyHashes=[], **named)
    assert document(made) is None


def test_an_entry_that_follows_announced_keys_says_what_comes_next() -> None:
    made = log(nextKeyHashes=[multihash(multikey(TWO).encode())])
    made.add(STATE, TWO, updateKeys=[multikey(TWO)])
    assert document(made) is None


@pytest.mark.parametrize(
    ("first", "second", "names", "is_found"),
    [
        (True, {}, "before", True),
        (True, {"portable": True}, "before", True),
        (False, {"portable": True}, "before", False),
        (True, {"portable": False}, "before", False),
        (True, {}, "another", False),
        (True, {}, "nothing", False),
    ],
)
def test_a_did_moves_where_its_first_entry_lets_it_and_says_where_from(
    first: bool,
    second: dict[str, Any],
    names: str,
    is_found: bool,
) -> None:
    made = log(portable=first)
    before = made.did
    made.add(STATE, ONE, **second)
    made._place = "elsewhere.example"
    known_as = {"before": [before], "another": [made.did], "nothing": None}[names]
    made.add({**STATE, "alsoKnownAs": known_as}, ONE)
    assert (document(made) is not None) is is_found
    assert document(made, before) is None


def test_the_longest_log_fits_the_size_that_is_read() -> None:
    agent = OwnDids(ONE, web_did="{DID}").merged({"id": "{DID}"})
    made = DidLog("agent.example:dids:alice")
    made.add(agent, ONE, updateKeys=[multikey(ONE)])
    while len(made.entries) < ENTRIES_MAX:
        made.add(agent, ONE, updateKeys=[multikey(ONE)])
    assert document(made) is not None
    assert len(made.text) <= DidWeb().bytes_max


def test_a_did_that_was_given_up_has_no_document() -> None:
    made = log()
    made.add(STATE, ONE, deactivated=True)
    assert document(made) is None


def changed_state(made: DidLog) -> None:
    made.entries[0]["state"]["service"] = [{"id": "#evil"}]


def changed_state_signed_anew(made: DidLog) -> None:
    changed_state(made)
    made.entries[0]["proof"] = [proof_of(made.entries[0], ONE)]


def another_signer(made: DidLog) -> None:
    made.entries[0]["proof"] = [proof_of(made.entries[0], TWO)]


def the_key_of_another_in_the_name(made: DidLog) -> None:
    key, other = multikey(ONE), multikey(TWO)
    name = f"did:key:{other}#{key}"
    made.entries[0]["proof"] = [proof_of(made.entries[0], TWO, verificationMethod=name)]


def another_cryptosuite(made: DidLog) -> None:
    made.entries[0]["proof"] = [proof_of(made.entries[0], ONE, cryptosuite="eddsa-rdfc-2022")]


def another_purpose(made: DidLog) -> None:
    made.entries[0]["proof"] = [proof_of(made.entries[0], ONE, proofPurpose="authentication")]


def another_base_of_the_signature(made: DidLog) -> None:
    proof = made.entries[0]["proof"][0]
    proof["proofValue"] = "m" + proof["proofValue"][1:]


def no_proof(made: DidLog) -> None:
    made.entries[0]["proof"] = []


def no_list_of_proofs(made: DidLog) -> None:
    made.entries[0]["proof"] = made.entries[0]["proof"][0]


def a_member_more(made: DidLog) -> None:
    made.entries[0]["extra"] = 1


def another_number(made: DidLog) -> None:
    entry = made.entries[0]
    entry["versionId"] = "2" + entry["versionId"][1:]
    entry["proof"] = [proof_of(entry, ONE)]


def the_first_again(made: DidLog) -> None:
    made.entries.append(made.entries[0])


def an_entry_of_another_log(made: DidLog) -> None:
    other = log(ttl=60)
    other.add(STATE, ONE)
    made.entries.append(other.entries[1])


def the_scid_of_another_log(made: DidLog) -> None:
    made.add(STATE, ONE, scid=SCID)


def no_first(made: DidLog) -> None:
    made.add(STATE, ONE)
    made.entries.pop(0)


def in_the_future(made: DidLog) -> None:
    made.add(STATE, ONE, at="2099-01-01T00:00:00Z")


def at_the_time_of_the_last(made: DidLog) -> None:
    made.add(STATE, ONE, at=made.entries[0]["versionTime"])


def before_the_last(made: DidLog) -> None:
    made.add(STATE, ONE, at="2025-12-31T23:59:59Z")


def without_a_zone(made: DidLog) -> None:
    made.add(STATE, ONE, at="2026-01-02T00:00:00")


def another_method(made: DidLog) -> None:
    made.add(STATE, ONE, method="did:webvh:9.9")


def a_right_proof_behind_four_wrong_ones(made: DidLog) -> None:
    entry = made.entries[0]
    entry["proof"] = [*[{**entry["proof"][0], "created": ""}] * 4, *entry["proof"]]


def a_key_that_it_authorizes_itself(made: DidLog) -> None:
    made.add(STATE, TWO, updateKeys=[multikey(TWO)])


def a_key_after_none_was_left(made: DidLog) -> None:
    made.add(STATE, ONE, updateKeys=[])
    made.add(STATE, ONE)


def too_many(made: DidLog) -> None:
    while len(made.entries) <= ENTRIES_MAX:
        made.add(STATE, ONE)


BREAKS: list[Callable[[DidLog], None]] = [
    changed_state, changed_state_signed_anew, another_signer, the_key_of_another_in_the_name,
    another_cryptosuite, another_purpose, another_base_of_the_signature, no_proof,
    no_list_of_proofs, a_member_more, another_number, the_first_again, an_entry_of_another_log,
    the_scid_of_another_log, no_first, in_the_future, at_the_time_of_the_last, before_the_last,
    without_a_zone, another_method, a_right_proof_behind_four_wrong_ones,
    a_key_that_it_authorizes_itself, a_key_after_none_was_left, too_many,
]  # fmt: skip


@pytest.mark.parametrize("broken", BREAKS, ids=lambda each: each.__name__)
def test_a_log_with_anything_wrong_has_no_document(broken: Callable[[DidLog], None]) -> None:
    made = log()
    broken(made)
    assert document(made) is None


def test_no_signature_longer_than_any_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Base58 takes quadratic time: a second or more for as much as a log may have."""
    decoded: list[int] = []

    def decode(text: str) -> bytes:
        decoded.append(len(text))
        signature: bytes = b58decode(text)
        return signature

    monkeypatch.setattr(webvh_proofs, "b58decode", decode)
    made = log()
    assert document(made) is not None
    made.entries[0]["proof"][0]["proofValue"] = "z" + "2" * 1_000
    assert document(made) is None
    assert len(decoded) == 1


def test_a_first_entry_that_is_not_what_the_did_holds_is_refused() -> None:
    made = DidLog("agent.example")
    made.add(STATE, ONE, updateKeys=[multikey(ONE)], scid=SCID)
    assert made.scid == SCID
    assert document(made) is None
    assert document(log(method=None)) is None
    assert document(log(scid=None)) is None
    other = log()
    assert document(other, f"did:webvh:{SCID}:agent.example") is None
    assert document(other, f"did:webvh:{other.scid}:other.example") is None


@pytest.mark.parametrize(
    ("place", "url"),
    [
        ("agent.example", "https://agent.example/.well-known/did.jsonl"),
        ("agent.example:dids:alice", "https://agent.example/dids/alice/did.jsonl"),
        ("agent.example%3A8443:a", "https://agent.example:8443/a/did.jsonl"),
    ],
)
def test_a_log_is_where_its_did_says(place: str, url: str) -> None:
    assert str(log_url(f"did:webvh:{SCID}:{place}")) == url


@pytest.mark.parametrize(
    "did",
    [
        f"did:webvh:{SCID}",
        f"did:webvh:{SCID}:",
        "did:webvh:agent.example",
        f"did:webvh:{SCID[:-1]}:agent.example",
        f"did:webvh:{SCID}:127.0.0.1",
        f"did:webvh:{SCID}:127%2E0%2E0%2E1",
        f"did:webvh:{SCID}:127.0.0.1%3A80",
        f"did:webvh:{SCID}:localhost",
        f"did:webvh:{SCID}:agent.example:..:secret",
        f"did:webvh:{SCID}:agent.example:%2E%2E",
        f"did:webvh:{SCID}:agent.example#key",
        f"did:web:{SCID}:agent.example",
    ],
)
def test_what_leads_elsewhere_is_no_did(did: str) -> None:
    assert log_url(did) is None


@given(st.data())
@examples(200)
def test_a_changed_byte_makes_no_other_document(data: st.DataObject) -> None:
    made = log()
    made.add({"service": [{"id": "#new"}]}, ONE)
    text = bytearray(made.text)
    at = data.draw(st.integers(0, len(text) - 1))
    text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    found = read_log(made.did, bytes(text), NOW_S)
    assert found in (None, document(made))


NAMES = ["versionId", "versionTime", "parameters", "state", "proof", "id", "method", "scid"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_whatever_a_host_answers_is_read_or_refused(value: object) -> None:
    did, answer = log().did, json.dumps(value).encode()
    assert read_log(did, answer, NOW_S) is None
    assert witness_url(did, answer) is None
