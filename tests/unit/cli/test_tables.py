"""Tables on a terminal show every column, whatever stands in the first."""

from __future__ import annotations

import pytest

from http_edge.cli.output import print_table

LONG_DID = "did:decentrl:YWxpY2U:" + "z6MkotvgNfXbr1sXKFLDKkTZ4d7KRPRkio6qfwE31HSHPS27" * 3


def shown(capsys: pytest.CaptureFixture[str], did: str) -> list[str]:
    print_table("Identities", ["did", "by", "node"], [[did, "operator", "node-7"]])
    return [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_a_long_did_hides_no_other_column(capsys: pytest.CaptureFixture[str]) -> None:
    _, head, _, first, *rest = shown(capsys, LONG_DID)
    assert head.split() == ["did", "by", "node"]
    start, by, node = first.split()
    assert (by, node) == ("operator", "node-7")
    assert start + "".join(rest) == LONG_DID


def test_a_short_name_stays_in_one_piece(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "did:web:bob.example")[3].split()[0] == "did:web:bob.example"
