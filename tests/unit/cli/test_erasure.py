"""``poste identities erase``, ``receipt`` and ``check-receipt``: receipts that hold."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from eventstore.log.erasure_receipt import ErasureReceipt, sign_receipt
from eventstore.log.public_key import PublicKey
from eventstore.stores.open_log import open_log
from http_edge.crypto import signatures
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server.exits import Exit
from http_edge.server.log_check import MEDIATOR_KEY
from tests.contract.test_erasure_contract import GONE, STAYS, erase, settle
from tests.contract.test_retention_contract import Mediator
from tests.unit.cli.conftest import Run, answering, data_dir_of

DID = "did:web:mediator.example"
ERASED = (200, json.dumps({"known": True, "records": 3, "is_over": True}).encode())


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The data directory of a mediator with a DID that no settings say; one is erased there."""
    path = tmp_path / "mediator"
    path.mkdir()
    load_or_create(path / "mediator-keys.json")
    with closing(open_log(f"sqlite:{path / 'log.db'}")) as log:
        mediator = Mediator(log)
        settle(mediator, GONE)
        settle(mediator, STAYS)
        erase(mediator, GONE)
        log.setting("mediator_did", DID)
    return path


def signed(data_dir: Path, receipt: ErasureReceipt) -> bytes:
    seed = load_or_create(data_dir / "mediator-keys.json").signing_seed
    return sign_receipt(receipt, partial(signatures.sign, seed))


def test_a_receipt_names_the_mediator_of_the_log(run: Run, tmp_path: Path, data_dir: Path) -> None:
    file = tmp_path / "receipt.json"
    at = ("--data-dir", str(data_dir))
    ran = run("identities", "receipt", GONE, "--receipt", str(file), *at)
    assert ran.code == Exit.OK, ran.err
    receipt = msgspec.json.decode(file.read_bytes().splitlines()[0], type=ErasureReceipt)
    assert receipt.mediator_did == DID
    assert run("identities", "check-receipt", str(file), *at).code == Exit.OK
    other = msgspec.structs.replace(receipt, mediator_did="did:web:127.0.0.1%3A8080")
    file.write_bytes(signed(data_dir, other))
    assert run("identities", "check-receipt", str(file), *at).code == Exit.FINDING


def test_who_knows_the_public_key_checks_a_receipt_without_the_key_file(
    run: Run, tmp_path: Path, data_dir: Path
) -> None:
    file, at = tmp_path / "receipt.json", ("--data-dir", str(data_dir))
    key = PublicKey(load_or_create(data_dir / "mediator-keys.json").signing_public)
    other = PublicKey(load_or_create(tmp_path / "others.json").signing_public)
    assert run("identities", "receipt", GONE, "--receipt", str(file), *at).code == Exit.OK
    (data_dir / "mediator-keys.json").unlink()
    for said, code in ((key.text, 0), (key.raw.hex(), 0), (other.text, Exit.FINDING)):
        ran = run("identities", "check-receipt", str(file), "--public-key", said, *at)
        assert ran.code == code, ran.err
    file.write_bytes(file.read_bytes().replace(b'"reason":"', b'"reason":"x'))
    changed = run("identities", "check-receipt", str(file), "--public-key", key.text, *at)
    assert changed.code == Exit.FINDING
    assert run("identities", "check-receipt", str(file), *at).code == Exit.USAGE


def test_no_receipt_is_signed_with_a_key_that_is_not_the_logs(
    run: Run, tmp_path: Path, data_dir: Path
) -> None:
    file, at = tmp_path / "receipt.json", ("--data-dir", str(data_dir))
    load_or_create(tmp_path / "others.json")
    with closing(open_log(f"sqlite:{data_dir / 'log.db'}")) as log:
        own = load_or_create(data_dir / "mediator-keys.json")
        log.setting(MEDIATOR_KEY, PublicKey(own.signing_public).text)
    others = ("--set", f"keys_file={tmp_path / 'others.json'}")
    ran = run("identities", "receipt", GONE, "--receipt", str(file), *at, *others)
    assert (ran.code, ran.out, file.exists()) == (Exit.UNSAFE, "", False)
    assert "the log belongs to the mediator with the key" in ran.err
    assert run("identities", "receipt", GONE, "--receipt", str(file), *at).code == Exit.OK


@pytest.mark.parametrize("form", [["--yes"], []])
def test_nothing_is_erased_where_its_receipt_cannot_be_written(
    run: Run, tmp_path: Path, data_dir: Path, form: list[str]
) -> None:
    where = data_dir_of(data_dir, "127.0.0.1:1")  # which would not answer
    file = tmp_path / "none" / "r.json"
    ran = run("identities", "erase", GONE, *form, "--receipt", str(file), "--data-dir", where)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert f"{file} cannot be written" in ran.err
    assert "--receipt" in ran.err


def test_a_file_for_a_receipt_is_left_as_it_is_until_there_is_one(
    run: Run, tmp_path: Path, data_dir: Path
) -> None:
    there, new = tmp_path / "there.json", tmp_path / "new.json"
    there.write_text("a receipt")
    with answering({"/identities/erase": (200, b'{"known": false}')}) as listen:
        at = ("--data-dir", data_dir_of(data_dir, listen))
        for file in (there, new):
            erased = ("identities", "erase", "did:x:unknown", "--yes", "--receipt", str(file))
            assert run(*erased, *at).code == Exit.FINDING
    assert there.read_text() == "a receipt"
    assert not new.exists()


def test_a_receipt_that_fails_after_the_erasure_does_not_hide_it(
    run: Run, tmp_path: Path, data_dir: Path
) -> None:
    with answering({"/identities/erase": ERASED}) as listen:
        at = ("--data-dir", data_dir_of(data_dir, listen))
        ran = run("identities", "erase", STAYS, "--yes", "--receipt", str(tmp_path / "r"), *at)
    assert (ran.code, ran.out) == (Exit.FINDING, "")
    assert f"{STAYS} is erased, but the receipt could not be made" in ran.err
    assert f"poste identities receipt {STAYS} --receipt FILE" in ran.err


def test_a_log_that_cannot_be_read_after_the_erasure_does_not_hide_it(
    run: Run, data_dir: Path
) -> None:
    away = ("--log", "postgresql://127.0.0.1:1/log")
    with answering({"/identities/erase": ERASED}) as listen:
        at = ("--data-dir", data_dir_of(data_dir, listen), *away)
        ran = run("identities", "erase", STAYS, "--yes", *at)
    assert (ran.code, ran.out) == (Exit.FINDING, "")
    assert f"{STAYS} is erased, but the receipt could not be made" in ran.err
    assert f"poste identities receipt {STAYS} --receipt FILE" in ran.err


@pytest.mark.timeout(30)
def test_requests_after_the_first_one_begin_no_erasure_anew(
    run: Run, tmp_path: Path, data_dir: Path
) -> None:
    path = f"/identities/erase?did={quote(GONE, safe='')}"
    begun = (200, json.dumps({"known": True, "records": 2, "is_over": False}).encode())
    with answering({path: begun, f"{path}&begun=true": ERASED}) as listen:
        at = ("--data-dir", data_dir_of(data_dir, listen))
        ran = run("identities", "erase", GONE, "--yes", "--receipt", str(tmp_path / "r"), *at)
    assert ran.code == Exit.OK, ran.err


def test_the_name_of_who_was_never_here_is_erased_only_by_an_option(
    run: Run, tmp_path: Path, data_dir: Path
) -> None:
    path = f"/identities/erase?did={quote(GONE, safe='')}"
    unknown = (200, b'{"known": false, "is_over": true, "records": 0}')
    with answering({path: unknown, f"{path}&foreign=true": ERASED}) as listen:
        at = ("--data-dir", data_dir_of(data_dir, listen))
        refused = run("identities", "erase", GONE, "--yes", *at)
        assert refused.code == Exit.FINDING
        assert "--foreign" in refused.err
        assert run("identities", "erase", GONE, "--foreign", "--yes", *at).code == Exit.OK


@pytest.mark.parametrize("did", [STAYS, "did:x:unknown"])
def test_a_receipt_of_what_was_not_erased_says_how_to_erase_it(
    run: Run, data_dir: Path, did: str
) -> None:
    ran = run("identities", "receipt", did, "--data-dir", str(data_dir))
    assert (ran.code, ran.out) == (Exit.FINDING, "")
    assert "poste identities erase DID" in ran.err


def test_a_file_that_is_no_receipt_is_named_as_none(
    run: Run, tmp_path: Path, data_dir: Path
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[section]\nkey = 1\n")
    ran = run("identities", "check-receipt", str(file), "--data-dir", str(data_dir))
    assert ran.code == Exit.FINDING
    assert "it is not an erasure receipt" in ran.out
    assert "hex" not in ran.out


@pytest.mark.parametrize("said", [{"known": False}, {"known": True, "speaks_for": True}])
def test_the_erasure_of_another_did_of_an_account_names_the_account(
    run: Run, data_dir: Path, said: dict[str, bool]
) -> None:
    answer = {**said, "is_over": False, "account": "did:key:z6Mk"}
    with answering({"/identities/erase": (200, json.dumps(answer).encode())}) as listen:
        at = ("--data-dir", data_dir_of(data_dir, listen))
        ran = run("identities", "erase", "did:x:other", "--yes", *at)
    assert ran.code in {Exit.FINDING, Exit.USAGE}
    assert "by its first DID: did:key:z6Mk" in ran.err


@pytest.mark.parametrize(
    ("is_over", "said"),
    [(False, "nothing was erased"), (True, f"{GONE} is erased, but keeps its name there")],
)
def test_a_database_that_does_not_answer_is_named_with_what_to_do(
    run: Run, data_dir: Path, said: str, *, is_over: bool
) -> None:
    answer = {"known": True, "is_over": is_over, "records": 0, "away": [1]}
    with answering({"/identities/erase": (200, json.dumps(answer).encode())}) as listen:
        ran = run("identities", "erase", GONE, "--yes", "--data-dir", data_dir_of(data_dir, listen))
    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
    assert f"database 1 does not answer: {said}" in ran.err
    assert "Run the same command again" in ran.err


def test_a_did_that_an_agent_had_registered_is_said_to_be_perhaps_not_all(
    run: Run, data_dir: Path
) -> None:
    answer = {"known": True, "is_over": True, "records": 0, "was_registered": True}
    with answering({"/identities/erase": (200, json.dumps(answer).encode())}) as listen:
        at = ("--data-dir", data_dir_of(data_dir, listen))
        ran = run("identities", "erase", GONE, "--foreign", "--yes", *at)
    assert ran.code == Exit.OK
    assert "an agent here had registered this DID" in ran.err
