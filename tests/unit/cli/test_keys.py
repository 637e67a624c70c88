"""``poste keys``: the public half of the mediator's identity, and never the other."""

import json
import stat
from contextlib import closing
from pathlib import Path

import pytest

from eventstore.log.public_key import PublicKey, read_public_key
from eventstore.stores.open_log import open_log
from http_edge.crypto.encoding import ED25519_PREFIX, X25519_PREFIX, b64encode, multibase_encode
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server.data_dir import locked
from http_edge.server.exits import Exit
from tests.unit.cli.conftest import Run, answering, data_dir_of


def test_keys_are_made_once_and_shown_public(run: Run, tmp_path: Path) -> None:
    first, second = run("keys", "--json"), run("keys", "--json")
    assert first.out == second.out
    path = tmp_path / "data" / "mediator-keys.json"
    keys = load_or_create(path)
    assert json.loads(first.out) == {
        "did": "did:web:127.0.0.1%3A8080",
        "url": "http://127.0.0.1:8080",
        "signing_key": multibase_encode(ED25519_PREFIX, keys.signing_public),
        "verifier_keys": [PublicKey(keys.signing_public).verifier_key("did:web:127.0.0.1%3A8080")],
        "pre_key": multibase_encode(X25519_PREFIX, keys.pre_public),
        "file": str(path),
    }


def test_the_directory_of_new_keys_is_for_its_owner_alone(run: Run, tmp_path: Path) -> None:
    run("keys")
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_every_form_of_the_signing_key_is_taken_as_public_key(run: Run) -> None:
    two = "postgresql://127.0.0.1:9/one postgresql://127.0.0.1:9/two"
    shown = json.loads(run("keys", "--json", "--set", f"log={two}").out)
    assert len(shown["verifier_keys"]) == 2
    assert shown["verifier_keys"][1].startswith(f"{shown['did']}/db-1+")
    forms = [shown["signing_key"], *shown["verifier_keys"]]
    assert len({read_public_key(form) for form in forms}) == 1


def test_keys_that_are_made_say_so_and_where_else_they_may_be(run: Run, tmp_path: Path) -> None:
    first, second = run("keys"), run("keys")
    assert f"no keys at {tmp_path}/data/mediator-keys.json, so new ones were created" in first.err
    assert "--data-dir" in first.err
    assert second.err == ""


@pytest.mark.parametrize(
    "args",
    [
        ["queue", "show"],
        ["queue", "purge", "did:x:y", "--yes"],
        ["shards", "list"],
        ["shards", "drain", "node-1"],
        ["identities", "list"],
        ["identities", "dedicate", "did:x:y"],
    ],
)
def test_a_command_that_needs_the_token_of_operators_makes_none(
    run: Run, tmp_path: Path, args: list[str]
) -> None:
    ran = run(*args)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert f"there is no operators' token at {tmp_path}/data/operators-token" in ran.err
    assert "--data-dir" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_token_that_is_lost_while_the_mediator_runs_comes_back_with_a_restart(
    run: Run, tmp_path: Path
) -> None:
    with locked(tmp_path):
        (tmp_path / "operators-address").write_text("http://127.0.0.1:1")
        ran = run("status", "--data-dir", str(tmp_path))
    assert ran.code == Exit.USAGE
    assert "Restart the mediator that runs there" in ran.err


def test_a_token_that_was_replaced_while_the_mediator_runs_is_read_at_a_restart(
    run: Run, tmp_path: Path
) -> None:
    with answering({"/status": (401, b"")}) as listen:
        ran = run("status", "--data-dir", data_dir_of(tmp_path, listen))
    assert ran.code == Exit.UNREACHABLE
    assert "restart the mediator, which reads it at its start" in ran.err


def test_a_command_that_needs_the_keys_of_a_mediator_makes_none(run: Run, tmp_path: Path) -> None:
    ran = run("invite", "--public-url", "https://mediator.example")
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert f"there are no mediator keys at {tmp_path}/data/mediator-keys.json" in ran.err
    assert "--data-dir" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_private_keys_are_never_shown(run: Run, tmp_path: Path) -> None:
    outs = run("keys").out + run("keys", "--json").out
    keys = load_or_create(tmp_path / "data" / "mediator-keys.json")
    for private in (keys.signing_seed, keys.pre_private):
        assert private.hex() not in outs
        assert b64encode(private) not in outs
        for prefix in (ED25519_PREFIX, X25519_PREFIX):
            assert multibase_encode(prefix, private) not in outs


def test_the_mediator_is_the_one_that_was_served_from_the_data_directory(
    run: Run, tmp_path: Path
) -> None:
    run("keys")
    (tmp_path / "data" / "served-url").write_text("https://m.example")
    shown = json.loads(run("keys", "--json").out)
    assert (shown["url"], shown["did"]) == ("https://m.example", "did:web:m.example")
    with closing(open_log(f"sqlite:{tmp_path / 'data' / 'log.db'}")) as log:
        log.setting("mediator_did", "did:web:of.the.log")
    for more in ([], ["--public-url", "https://n.example"]):
        shown = json.loads(run("keys", "--json", *more).out)
        assert shown["did"] == "did:web:of.the.log"
        assert shown["verifier_keys"][0].startswith("did:web:of.the.log+")
    assert shown["url"] == "https://n.example"


def test_no_keys_are_made_where_a_mediator_was_served_with_others(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "served-url").write_text("https://m.example")
    ran = run("keys")
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert f"no mediator keys at {data}/mediator-keys.json, but a mediator was served" in ran.err
    assert "--set keys_file=PATH" in ran.err
    assert not (data / "mediator-keys.json").exists()


def test_a_directory_that_cannot_have_keys_is_named_and_none_are_said_to_be_made(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for directory in ("file", "file/below"):
        ran = run("keys", "--data-dir", directory)
        assert (ran.code, ran.out) == (Exit.USAGE, "")
        assert f"{tmp_path}/{directory} cannot be used" in ran.err
        assert "--data-dir" in ran.err
        assert "new ones" not in ran.err


def test_a_key_file_that_others_can_read_is_not_used(run: Run, tmp_path: Path) -> None:
    run("keys")
    path = tmp_path / "data" / "mediator-keys.json"
    path.chmod(0o644)
    ran = run("keys")
    assert (ran.code, ran.out) == (Exit.UNSAFE, "")
    assert f"chmod 600 {path}" in ran.err
