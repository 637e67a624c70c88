"""did:webvh: a log with witnesses is believed where enough of them have approved each entry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.dids import webvh_proofs
from http_edge.dids.webvh import read_log, witness_url
from http_edge.dids.webvh_proofs import PROOFS_MAX, WITNESSES_MAX, method_of
from tests.examples import examples
from tests.unit.wire.did_log import DidLog, approval_of, multikey

OWNER, ANN, BEN, CAT = (KeyPair.from_seed(bytes([number]) * 32) for number in (1, 2, 3, 4))
NOW_S = 1_790_000_000
Approvals = list[dict[str, Any]]


def witnesses(threshold: int, *pairs: KeyPair) -> dict[str, Any]:
    listed = [{"id": f"did:key:{multikey(pair)}"} for pair in pairs]
    return {"threshold": threshold, "witnesses": listed}


def log(**parameters: Any) -> DidLog:
    made = DidLog("agent.example")
    made.add({}, OWNER, updateKeys=[multikey(OWNER)], **parameters)
    return made


def is_believed(made: DidLog, approvals: Approvals) -> bool:
    proofs = json.dumps(approvals).encode()
    found = read_log(made.did, made.text, NOW_S, proofs)
    assert found in (None, made.entries[-1]["state"])
    return found is not None


def approved(made: DidLog, number: int, *pairs: KeyPair) -> dict[str, Any]:
    return approval_of(made.entries[number - 1]["versionId"], *pairs)


@pytest.mark.parametrize(
    ("pairs", "enough"),
    [
        ([ANN, BEN], True),
        ([CAT, ANN], True),
        ([ANN, BEN, CAT], True),
        ([ANN], False),
        ([], False),
        ([ANN, ANN], False),
        ([ANN, OWNER], False),
    ],
)
def test_the_witnesses_that_an_entry_names_first_approve_it(
    pairs: list[KeyPair], *, enough: bool
) -> None:
    made = log(witness=witnesses(2, ANN, BEN, CAT))
    assert is_believed(made, [approved(made, 1, *pairs)]) is enough
    assert is_believed(made, [approved(made, 1, pair) for pair in pairs]) is enough


def test_a_log_without_witnesses_needs_no_file_and_says_so() -> None:
    made = log(witness={})
    assert read_log(made.did, made.text, NOW_S) is not None
    assert witness_url(made.did, made.text) is None
    named = log(witness=witnesses(1, ANN))
    assert read_log(named.did, named.text, NOW_S) is None
    assert str(witness_url(named.did, named.text)) == (
        "https://agent.example/.well-known/did-witness.json"
    )


def test_an_approval_is_of_all_entries_before_and_of_none_after() -> None:
    made = log(witness=witnesses(1, ANN))
    first = approved(made, 1, ANN)
    made.add({}, OWNER)
    assert not is_believed(made, [first])
    assert is_believed(made, [approved(made, 2, ANN)])
    assert is_believed(made, [first, approved(made, 2, ANN)])


def test_witnesses_approve_every_entry_until_one_names_others() -> None:
    made = log(witness=witnesses(1, ANN))
    for number in (2, 3, 4):
        made.add({}, OWNER)
        assert not is_believed(made, [approved(made, number - 1, ANN)])
        assert is_believed(made, [approved(made, number, ANN)])


def test_a_log_that_is_no_json_needs_no_file_of_proofs() -> None:
    made = log(witness=witnesses(1, ANN))
    assert witness_url(made.did, made.text + b"{]") is None


def test_proofs_that_name_no_witness_are_passed_over_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named: list[str] = []

    def counted(key: str) -> str:
        named.append(key)
        return method_of(key)

    monkeypatch.setattr(webvh_proofs, "method_of", counted)
    pairs = [KeyPair.from_seed(bytes([number]) * 32) for number in range(WITNESSES_MAX)]
    made = log(witness=witnesses(1, *pairs))
    approval = approved(made, 1, pairs[-1])
    odd: list[Any] = [{}, {"verificationMethod": []}, {"verificationMethod": "did:key:z6Mk#"}]
    approval["proof"][:0] = odd * 500
    assert is_believed(made, [approval])
    assert len(named) == WITNESSES_MAX + 1  # and once for the proof of the entry itself


def test_an_approval_of_what_is_not_published_says_nothing() -> None:
    made = log(witness=witnesses(1, ANN))
    made.add({}, OWNER)
    later = approved(made, 2, ANN)
    made.entries.pop()
    assert not is_believed(made, [later])
    assert is_believed(made, [later, approved(made, 1, ANN)])


def test_new_witnesses_are_approved_by_those_before_and_approve_what_comes_after() -> None:
    made = log(witness=witnesses(1, ANN))
    made.add({}, OWNER, witness=witnesses(1, BEN))
    assert is_believed(made, [approved(made, 2, ANN)])
    assert not is_believed(made, [approved(made, 2, BEN), approved(made, 1, ANN)])
    made.add({}, OWNER)
    assert is_believed(made, [approved(made, 3, BEN), approved(made, 2, ANN)])
    assert not is_believed(made, [approved(made, 3, ANN)])


@pytest.mark.parametrize("none", [{}, None], ids=["empty", "null, as early logs have it"])
def test_witnesses_approve_that_there_are_none_any_more(none: dict[str, Any] | None) -> None:
    made = log(witness=witnesses(1, ANN))
    made.add({}, OWNER, witness=none)
    assert not is_believed(made, [approved(made, 1, ANN)])
    made.add({}, OWNER)
    assert is_believed(made, [approved(made, 2, ANN)])
    made.add({}, OWNER, witness=witnesses(1, BEN))
    assert not is_believed(made, [approved(made, 2, ANN)])
    assert is_believed(made, [approved(made, 2, ANN), approved(made, 4, BEN)])


@pytest.mark.parametrize(
    "parameter",
    [
        witnesses(0, ANN),
        witnesses(2, ANN),
        witnesses(1, ANN, ANN),
        witnesses(1),
        {"threshold": 1},
        {"threshold": 1, "witnesses": [{"id": "did:web:ann.example"}]},
        {"threshold": 1, "witnesses": [multikey(ANN)]},
        {
            "threshold": 1,
            "witnesses": [{"id": f"did:key:{multikey(ANN)}"}, {"id": "did:web:ben.example"}],
        },
        {
            "threshold": 1,
            "witnesses": [{"id": f"did:key:z6Mk{n}"} for n in range(WITNESSES_MAX)]
            + [{"id": f"did:key:{multikey(ANN)}"}],
        },
    ],
)
def test_what_names_witnesses_badly_is_not_read(parameter: dict[str, Any]) -> None:
    made = log(witness=parameter)
    assert not is_believed(made, [approved(made, 1, ANN)])


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("cryptosuite", "eddsa-rdfc-2022"),
        ("proofPurpose", "authentication"),
        ("verificationMethod", f"did:key:{multikey(BEN)}#{multikey(BEN)}"),
        ("proofValue", "z1111"),
        ("proofValue", "not base58: 0OIl"),
        ("proofValue", None),
        ("created", "2027-01-01T00:00:00Z"),
    ],
)
def test_a_proof_that_is_not_right_counts_for_nothing_and_harms_no_other(
    member: str, value: object
) -> None:
    made = log(witness=witnesses(1, ANN, BEN))
    broken = approved(made, 1, ANN)
    broken["proof"][0][member] = value
    assert not is_believed(made, [broken])
    assert is_believed(made, [broken, approved(made, 1, BEN)])


@pytest.mark.parametrize("proofs", [b"", b"{}", b"[1]", b'[{"versionId":"x"}]', b"[", b"[[]]"])
def test_a_file_that_is_none_approves_nothing(proofs: bytes) -> None:
    made = log(witness=witnesses(1, ANN))
    assert read_log(made.did, made.text, NOW_S, proofs) is None


def test_a_file_makes_us_check_so_many_signatures_and_no_more() -> None:
    made = log(witness=witnesses(1, ANN, BEN))
    wrong = approved(made, 1, ANN)
    wrong["proof"][0]["created"] = "2027-01-01T00:00:00Z"
    right = approved(made, 1, BEN)
    assert is_believed(made, [*[wrong] * (PROOFS_MAX - 1), right])
    assert not is_believed(made, [*[wrong] * PROOFS_MAX, right])


@given(st.data())
@examples(100)
def test_a_changed_file_never_approves_more(data: st.DataObject) -> None:
    made = log(witness=witnesses(2, ANN, BEN))
    proofs = bytearray(json.dumps([approved(made, 1, ANN, CAT)]).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        proofs[data.draw(st.integers(0, len(proofs) - 1))] = data.draw(st.integers(0, 255))
    assert read_log(made.did, made.text, NOW_S, bytes(proofs)) is None
