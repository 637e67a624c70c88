from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from http_edge.crypto import key_agreement, signatures
from http_edge.crypto.encoding import b64encode
from http_edge.crypto.mediator_keys import (
    MediatorKeys,
    create,
    load,
    load_operators_token,
    load_or_create,
    new_keys,
    operators_token,
)
from http_edge.crypto.private_files import KeyFileRefused, create_private

SEED, PRIVATE = b64encode(bytes(range(32))), b64encode(bytes(range(32, 64)))


def _write(path: Path, content: str, mode: int = 0o600) -> Path:
    path.write_text(content, encoding="utf-8")
    path.chmod(mode)
    return path


def _file(**members: object) -> str:
    return json.dumps({"ed25519_seed": SEED, "x25519_private_key": PRIVATE} | members)


def test_the_keys_are_made_once_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "data" / "mediator.key"
    keys = load_or_create(path)
    assert load_or_create(path) == keys
    assert keys != new_keys()


def test_the_file_is_its_owners_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "mediator.key"
    load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_of_many_processes_that_start_at_once_all_get_the_same_keys(tmp_path: Path) -> None:
    path = tmp_path / "mediator.key"
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(load_or_create, [path] * 64))
    assert len({keys.signing_seed for keys in found}) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_of_a_faster_process_stays(tmp_path: Path) -> None:
    path, keys = tmp_path / "mediator.key", new_keys()
    create(path, keys)
    create(path, new_keys())
    assert load(path) == keys
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o602, 0o610, 0o601, 0o660])
def test_a_file_that_is_open_to_others_is_refused_with_the_remedy(
    tmp_path: Path, mode: int
) -> None:
    path = _write(tmp_path / "mediator.key", _file(), mode)
    with pytest.raises(KeyFileRefused, match=f"mode {mode:04o}.*chmod 600 {path}"):
        load_or_create(path)
    path.chmod(0o600)
    assert load_or_create(path).signing_seed == bytes(range(32))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not json",
        "[]",
        "{}",
        _file(ed25519_seed=None),
        _file(ed25519_seed="!" + SEED),
        _file(ed25519_seed=SEED[:-2]),
        _file(x25519_private_key=PRIVATE + "AAAA"),
        _file(x25519_private_key=[PRIVATE]),
        _file(another=SEED),
        _file()[:-2],
        _file() + " " * 5000 + "x",
    ],
)
def test_a_malformed_file_is_refused_and_neither_replaced_nor_quoted(
    tmp_path: Path, content: str
) -> None:
    path = _write(tmp_path / "mediator.key", content)
    with pytest.raises(KeyFileRefused, match="restore it from a backup") as refused:
        load_or_create(path)
    assert SEED[:-2] not in str(refused.value)
    assert path.read_text(encoding="utf-8") == content


def test_a_read_only_key_file_will_do(tmp_path: Path) -> None:
    path = _write(tmp_path / "mediator.key", _file(), mode=0o400)
    assert load_or_create(path).pre_private == bytes(range(32, 64))


def test_the_public_halves_belong_to_the_private_ones() -> None:
    keys = new_keys()
    message = b"message"
    assert signatures.verify(
        keys.signing_public, message, signatures.sign(keys.signing_seed, message)
    )
    other = key_agreement.new_key_pair()
    assert key_agreement.shared_secret(
        keys.pre_private, other.public
    ) == key_agreement.shared_secret(other.private, keys.pre_public)


def test_keys_do_not_show_their_secrets() -> None:
    keys = MediatorKeys(bytes(range(32)), bytes(range(32, 64)))
    assert keys.signing_public
    assert f"{keys} {keys!r}" == "MediatorKeys() MediatorKeys()"


@pytest.mark.parametrize(("seed", "private"), [(31, 32), (33, 32), (32, 31), (0, 0)])
def test_keys_of_another_length_are_refused(seed: int, private: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        MediatorKeys(bytes(seed), bytes(private))


def test_the_token_of_operators_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "operators-token"
    token = operators_token(path)
    assert operators_token(path) == load_operators_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert operators_token(tmp_path / "another") != token
    assert len(token) == 64


def test_a_token_with_a_line_end_is_read_without_it(tmp_path: Path) -> None:
    create_private(tmp_path / "token", b"0123456789abcdef\n")
    assert load_operators_token(tmp_path / "token") == "0123456789abcdef"
