"""``poste invite``: invitations that the server knows again, with the terms that were named."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from actors.host.clock import system_clock
from http_edge.crypto.mediator_keys import MediatorKeys, load_or_create, new_keys, service_seed
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.protocols.invitations import PARAMETERS, Invitations, MediatorInvitation
from http_edge.dids.own_document import mediator_document
from http_edge.server.exits import Exit
from tests.unit.cli.conftest import Ran, Run, answering

URL = "https://mediator.example"
PUBLIC = ("--public-url", URL)


@pytest.fixture(autouse=True)
def keys(tmp_path: Path) -> MediatorKeys:
    """The mediator has started once: its data directory holds its keys."""
    return load_or_create(tmp_path / "data" / "mediator-keys.json")


@pytest.fixture
def running(keys: MediatorKeys) -> Iterator[str]:
    """Where a mediator with these keys listens, whose URL for others is another one."""
    with mediator(keys, "https://public.example:8443") as listen:
        yield listen


@contextmanager
def mediator(keys: MediatorKeys, url: str) -> Iterator[str]:
    """A server that answers with the DID document of a mediator; yields where it listens."""
    document = json.dumps(mediator_document("did:web:public.example", url, keys)).encode()
    with answering({"/.well-known/did.json": (200, document)}) as listen:
        yield listen


def known(ran: Ran, tmp_path: Path) -> MediatorInvitation:
    """The invitation of the URL that was printed, as the server with this key file reads it."""
    assert ran.code == Exit.OK, ran.err
    long, short = re.findall(rf"{URL}/invitation\?\S+?(?=\"|\s)", ran.out)
    parameters = {name: text for name, (text,) in parse_qs(urlsplit(long).query).items()}
    key = KeyPair.from_seed(service_seed(load_or_create(tmp_path / "data" / "mediator-keys.json")))
    server = Invitations(key, "Poste", f"{URL}/didcomm")
    read = {
        server.read(protocol, parameters[p])
        for protocol, p in PARAMETERS.items()
        if p in parameters
    }
    (found,) = read
    assert found is not None
    named = parse_qs(urlsplit(short).query)
    (named_id,) = named.get("id") or named["_oobid"]
    assert server.read_short(named_id, named["label"][0]) == found
    is_for_both = {"oob", "_oob"} == set(parameters)
    assert is_for_both == ("protocol" not in named and "_oobid" not in named)
    return found


def test_an_invitation_is_for_any_number_of_wallets_for_ever(run: Run, tmp_path: Path) -> None:
    ran = run("invite", *PUBLIC)
    invitation = known(ran, tmp_path)
    assert not invitation.terms.single_use
    assert invitation.terms.expires_at_s is None
    assert "For any number of wallets, without expiry." in ran.out
    assert invitation.terms.id in ran.out
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
        "url": invitation.url(URL, "connections"),
        "short_url": invitation.short_url(URL, "connections"),
        "invitation": invitation.message("connections"),
        "invitation_2": invitation.message("out-of-band-2"),
    }


def test_an_invitation_for_the_newer_generation_alone(run: Run, tmp_path: Path) -> None:
    ran = run("invite", *PUBLIC, "--json", "--protocol", "out-of-band-2")
    invitation = known(ran, tmp_path)
    said = json.loads(ran.out)
    assert said["url"] == f"{URL}/invitation?{invitation.query('out-of-band-2')}"
    assert said["invitation"] == said["invitation_2"] == invitation.message("out-of-band-2")


def test_every_invitation_is_another_one(run: Run, tmp_path: Path) -> None:
    ids = {known(run("invite", *PUBLIC), tmp_path).terms.id for _ in range(3)}
    assert len(ids) == 3


def code_in(ran: Ran) -> list[str]:
    """The lines of the QR code in the output."""
    return [line for line in ran.out.splitlines() if set(line) & set("▀▄█")]


def test_the_qr_code_is_printed_where_it_is_asked_for(run: Run) -> None:
    assert not code_in(run("invite", *PUBLIC))
    lines = code_in(run("invite", *PUBLIC, "--qr"))
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == (len(lines[0]) + 1) // 2
    assert set("".join(lines)) == set(" ▀▄█")


@pytest.mark.parametrize("more", [[], ["--single-use", "--expires", "7d", "--label", "x" * 64]])
def test_the_qr_code_fits_a_terminal_of_80_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = run("invite", *PUBLIC, "--qr", "--protocol", "connections", *more)
    assert (ran.code, ran.err) == (Exit.OK, "")
    lines = code_in(ran)
    assert lines
    assert all(len(line) <= 80 for line in lines)


def test_the_qr_code_of_the_long_url_is_there_for_wallets_without_network(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = code_in(run("invite", *PUBLIC, "--qr"))
    long = code_in(run("invite", *PUBLIC, "--qr", "--long"))
    assert len(long) > len(short)
    monkeypatch.setenv("COLUMNS", "80")
    ran = run("invite", *PUBLIC, "--qr", "--long")
    assert (ran.code, code_in(ran)) == (Exit.OK, [])
    assert "--png FILE" in ran.err


def test_the_qr_code_is_written_as_a_picture(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "invitation.png"
    assert run("invite", *PUBLIC, "--png", str(picture)).code == Exit.OK
    assert picture.read_bytes().startswith(b"\x89PNG")
    for wrong in (tmp_path, tmp_path / "none" / "x.png"):
        ran = run("invite", *PUBLIC, "--png", str(wrong))
        assert (ran.code, ran.out) == (Exit.USAGE, "")
        assert f"{wrong} cannot be written" in ran.err
        assert "--png" in ran.err


@pytest.mark.parametrize("setting", ["didcomm.registration=closed", "didcomm.enabled=false"])
def test_a_mediator_that_takes_no_wallet_is_not_invited_to(run: Run, setting: str) -> None:
    ran = run("invite", *PUBLIC, "--set", setting)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert setting.partition("=")[0] in ran.err


def test_the_url_is_that_of_the_mediator_that_is_asked(run: Run, running: str) -> None:
    ran = run("invite", "--url", f"http://{running}")
    assert (ran.code, ran.err) == (Exit.OK, "")
    assert "https://public.example:8443/invitation?oob=" in ran.out


def test_the_url_is_the_one_that_was_served_from_the_data_directory(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "data" / "served-url").write_text("https://served.example")
    ran = run("invite")
    assert (ran.code, ran.err) == (Exit.OK, "")
    assert "https://served.example/invitation?oob=" in ran.out
    assert f"{URL}/invitation?oob=" in run("invite", *PUBLIC).out


def test_a_mediator_with_other_keys_is_not_invited_to(run: Run, tmp_path: Path) -> None:
    with mediator(new_keys(), URL) as listen:
        ran = run("invite", "--url", f"http://{listen}")
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert f"{listen} is not the mediator with the keys in {tmp_path}/data" in ran.err
    assert "--data-dir" in ran.err


def test_an_answer_that_is_nested_without_end_is_no_mediators(run: Run) -> None:
    with answering({"/.well-known/did.json": (200, b"[" * 100_000)}) as listen:
        ran = run("invite", "--url", f"http://{listen}")
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert f"{listen} is not the mediator" in ran.err


def test_a_mediator_that_is_named_has_to_answer(run: Run) -> None:
    ran = run("invite", "--url", "http://127.0.0.1:1")
    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")


def test_an_address_of_this_machine_alone_is_pointed_out(run: Run) -> None:
    ran = run("invite", "--set", "listen=127.0.0.1:1")
    assert ran.code == Exit.OK
    assert "only from this machine" in ran.err
    assert "--public-url" in ran.err
    assert "http://127.0.0.1:1/invitation?oob=" in ran.out
