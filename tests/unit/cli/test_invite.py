"""``poste invite``: invitations that the server knows again, for the terms that were asked for."""

import json
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from actors.clock import system_clock
from http_edge.cli.output import Exit
from http_edge.didcomm.invitations import Invitation, Invitations
from http_edge.didcomm.keys import service_key
from http_edge.mediator_keys import load_or_create
from tests.unit.cli.conftest import Ran, Run

URL = "https://mediator.example"
PUBLIC = ("--public-url", URL)


def known(ran: Ran, tmp_path: Path) -> Invitation:
    """The invitation of the URL that was printed, as the server with this key file reads it."""
    assert ran.code == Exit.OK, ran.err
    (line,) = re.findall(rf"{URL}/invitation\?\S+?(?=\"|\s)", ran.out)
    ((parameter, (text,)),) = parse_qs(urlsplit(line).query).items()
    key = service_key(load_or_create(tmp_path / "data" / "mediator-keys.json"))
    server = Invitations(key, "Poste", f"{URL}/didcomm")
    found = server.read("out-of-band" if parameter == "oob" else "connections", text)
    assert found is not None
    return found


def test_an_invitation_is_for_any_number_of_wallets_for_ever(run: Run, tmp_path: Path) -> None:
    ran = run("invite", *PUBLIC)
    invitation = known(ran, tmp_path)
    assert not invitation.terms.single_use
    assert invitation.terms.expires_at_s is None
    assert "For any number of wallets, without expiry." in ran.out
    assert "Poste" in ran.out
    assert ran.err == ""


@pytest.mark.parametrize(
    ("period", "seconds"),
    [("7d", 7 * 86_400), ("12h", 43_200), ("90m", 5_400), ("30s", 30), ("45", 45)],
)
def test_an_invitation_ends_when_it_shall(
    run: Run, tmp_path: Path, period: str, seconds: int
) -> None:
    before_s = system_clock() // 1000
    invitation = known(run("invite", *PUBLIC, "--single-use", "--expires", period), tmp_path)
    assert invitation.terms.single_use
    assert invitation.terms.expires_at_s is not None
    assert seconds <= invitation.terms.expires_at_s - before_s <= seconds + 60


@pytest.mark.parametrize("period", ["0", "0d", "-1", "1w", "1.5h", "", "3651d", "9" * 20])
def test_a_period_that_is_none_is_refused(run: Run, tmp_path: Path, period: str) -> None:
    ran = run("invite", *PUBLIC, "--expires", period)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert not (tmp_path / "data").exists()


def test_an_invitation_has_the_label_that_it_is_given(run: Run, tmp_path: Path) -> None:
    assert known(run("invite", *PUBLIC, "--label", "Für Alice"), tmp_path).label == "Für Alice"
    named = run("invite", *PUBLIC, "--set", "didcomm.label=Our mediator")
    assert known(named, tmp_path).label == "Our mediator"
    for label in ("", "x" * 65, "two\nlines"):
        assert run("invite", *PUBLIC, "--label", label).code == Exit.USAGE


def test_json_holds_the_message_too(run: Run, tmp_path: Path) -> None:
    ran = run("invite", *PUBLIC, "--json", "--protocol", "connections", "--single-use")
    invitation = known(ran, tmp_path)
    assert json.loads(ran.out) == {
        "id": invitation.terms.id,
        "label": "Poste",
        "single_use": True,
        "expires_at_s": None,
        "protocol": "connections",
        "url": invitation.connections_url(URL),
        "invitation": invitation.connections(),
    }


def test_every_invitation_is_another_one(run: Run, tmp_path: Path) -> None:
    ids = {known(run("invite", *PUBLIC), tmp_path).terms.id for _ in range(3)}
    assert len(ids) == 3


def test_the_qr_code_is_printed_where_it_is_asked_for(run: Run) -> None:
    assert "█" not in run("invite", *PUBLIC).out
    ran = run("invite", *PUBLIC, "--qr")
    lines = ran.out.partition("/invitation?")[2].splitlines()[1:]
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == (len(lines[0]) + 1) // 2
    assert set("".join(lines)) == set(" ▀▄█")


def test_a_qr_code_that_does_not_fit_is_not_printed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = run("invite", *PUBLIC, "--qr")
    assert ran.code == Exit.OK
    assert "█" not in ran.out
    assert "--png FILE" in ran.err


def test_the_qr_code_is_written_as_a_picture(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "invitation.png"
    assert run("invite", *PUBLIC, "--png", str(picture)).code == Exit.OK
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run("invite", *PUBLIC, "--png", str(tmp_path)).code == Exit.USAGE


@pytest.mark.parametrize("setting", ["didcomm.registration=closed", "didcomm.enabled=false"])
def test_nobody_is_invited_to_what_takes_nobody(run: Run, setting: str) -> None:
    ran = run("invite", *PUBLIC, "--set", setting)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert setting.partition("=")[0] in ran.err


def test_a_mediator_without_a_public_url_is_told_of_it(run: Run) -> None:
    ran = run("invite")
    assert ran.code == Exit.OK
    assert "public_url is not set" in ran.err
    assert "http://127.0.0.1:8080/invitation?oob=" in ran.out
