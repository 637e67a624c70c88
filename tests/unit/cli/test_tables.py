"""Tables on a terminal of 80 columns show every column, and no value is broken."""

from __future__ import annotations

import pytest

from http_edge.cli.output import print_record, print_table

LONG_DID = "did:decentrl:YWxpY2U:" + "z6MkotvgNfXbr1sXKFLDKkTZ4d7KRPRkio6qfwE31HSHPS27" * 3
COLUMNS = ["did", "by", "node"]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_a_long_did_hides_no_other_column_and_stands_whole_on_its_own_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table("Identities", COLUMNS, [[LONG_DID, "operator", "node-7"]])
    title, head, _, row, below = lines(capsys)
    assert title == "Identities"
    assert head.split() == COLUMNS
    assert row.split() == ["\u2193", "operator", "node-7"]
    assert below == LONG_DID


def test_a_value_that_fits_stays_in_its_row_beside_one_that_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [["did:web:bob.example", "load", "node-1"], [LONG_DID, "operator", "node-7"]]
    print_table("Identities", COLUMNS, rows)
    _, _, _, short, long, below = lines(capsys)
    assert short.split() == ["did:web:bob.example", "load", "node-1"]
    assert long.split() == ["\u2193", "operator", "node-7"]
    assert below == LONG_DID


def test_the_columns_stand_under_their_heads_and_numbers_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table("Queues", ["did", "bytes"], [["did:x:a", 7], ["did:x:b", 12_345]])
    assert capsys.readouterr().out.splitlines() == [
        "Queues",
        "",
        " did       bytes",
        " " + "\u2500" * 15,
        " did:x:a       7",
        " did:x:b  12,345",
        "",
    ]


def test_a_value_that_is_missing_or_empty_is_shown_as_a_dash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table("Hosts", ["host", "node", "to", "silent"], [["host-0", "", None, []]])
    assert lines(capsys)[-1].split() == ["host-0", "-", "-", "-"]


def test_a_record_keeps_its_names_beside_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    print_record("Keys", {"did": LONG_DID, "file": "/srv/keys.json", "used": True, "at": None})
    out = capsys.readouterr().out
    assert f"did   \u2193\n   {LONG_DID}\n" in out
    assert " file  /srv/keys.json\n used  yes\n at    -" in out


def test_no_line_but_that_of_a_long_value_is_wider_than_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = [f"column_{number}" for number in range(6)]
    print_table("Wide", columns, [["x" * (10 * number) for number in range(6)]] * 2)
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())


def test_text_from_elsewhere_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("Agents", ["label"], [["a\x1b[2Jb"], ["x\n" * 90]])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "a\\x1b[2Jb" in out


def test_where_the_heads_do_not_fit_each_row_is_a_record_of_names_and_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = ["message_id", "identity", "queued_at", "deliveries", "recipient_key", "a" * 30]
    rows = [["m-1", LONG_DID, "2030-12-31", 1_000, None, ["x"]], ["m-2", "did:a", "", 2, "k", True]]
    print_table("Stuck", columns, rows)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split() for line in printed] == [
        ["Stuck"],
        [],
        ["message_id", "m-1"],
        ["identity", "\u2193"],
        [LONG_DID],
        ["queued_at", "2030-12-31"],
        ["deliveries", "1,000"],
        ["recipient_key", "-"],
        ["a" * 30, '["x"]'],
        [],
        ["message_id", "m-2"],
        ["identity", "did:a"],
        ["queued_at", "-"],
        ["deliveries", "2"],
        ["recipient_key", "k"],
        ["a" * 30, "yes"],
        [],
    ]
    assert all(len(line) <= 80 for line in printed if LONG_DID not in line)
