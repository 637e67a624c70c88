"""``poste proof check``: what a proof shows, how it ends, and what is said of its signer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from http_edge.server.exits import Exit
from tests.log.proofs import KEY, MESSAGE_ID, ORIGIN
from tests.unit.cli.conftest import Run

GOLDEN = Path(__file__).parents[2] / "golden" / "proofs"
MESSAGE = str(GOLDEN / "message-proof.1.json")
CONSISTENCY = str(GOLDEN / "consistency-proof.1.json")


@pytest.mark.parametrize("key", [KEY.text, KEY.verifier_key(ORIGIN)])
def test_a_proof_that_holds_shows_the_life_of_the_message(run: Run, key: str) -> None:
    ran = run("proof", "check", MESSAGE, "--public-key", key, "--json")
    said = json.loads(ran.out)
    assert (ran.code, said["holds"], said["signer"]["is_named"]) == (Exit.OK, True, True)
    assert said["message"]["message_id"] == MESSAGE_ID
    assert [event["event"] for event in said["events"]] == ["queued", "delivered", "removed"]
    assert said["events"][0]["at"] == "2023-11-14T22:13:20.000Z"
    shown = run("proof", "check", MESSAGE, "--public-key", key)
    assert (shown.code, shown.err) == (Exit.OK, "")
    assert "The proof holds" in shown.out
    assert "the key that was expected" in shown.out


def test_without_a_key_it_is_said_that_the_signer_is_not_known(run: Run) -> None:
    for file in (MESSAGE, CONSISTENCY):
        ran = run("proof", "check", file)
        assert (ran.code, "not known: no key was named" in ran.out) == (Exit.OK, True)
        assert KEY.text in ran.out
        assert not json.loads(run("proof", "check", file, "--json").out)["signer"]["is_named"]


def test_a_proof_by_another_key_is_a_finding(run: Run) -> None:
    other = "z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
    for options in ((), ("--json",)):
        ran = run("proof", "check", CONSISTENCY, "--public-key", other, *options)
        assert (ran.code, "other-key" in ran.out) == (Exit.FINDING, True)


def test_a_consistency_proof_names_both_heads(run: Run) -> None:
    said = json.loads(run("proof", "check", CONSISTENCY, "--json").out)
    assert (said["old"]["size"], said["new"]["size"], said["new"]["origin"]) == (5, 12, ORIGIN)


def test_a_changed_proof_is_named_and_what_cannot_be_read_is_no_finding(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "changed").write_bytes(
        Path(MESSAGE).read_bytes().replace(b'"version":2', b'"version":3')
    )
    ran = run("proof", "check", "changed")
    assert (ran.code, "broken-seal" in ran.out, ran.err) == (Exit.FINDING, True, "")
    assert " file         changed\n" in ran.out
    assert json.loads(run("proof", "check", "changed", "--json").out)["file"] == "changed"
    assert json.loads(run("proof", "check", "changed", "--json").out)["holds"] is False
    assert run("proof", "check", "nowhere").code == Exit.USAGE
    refused = run("proof", "check", MESSAGE, "--public-key", "no-key")
    assert (refused.code, "base58 as in export.json" in refused.err) == (Exit.USAGE, True)
