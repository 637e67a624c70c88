from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from http_edge.clients.decentrl import Identity, NotAuthentic, UnusableIdentity
from http_edge.crypto.signatures import public_key, verify_object
from http_edge.dids import decentrl


def test_an_identity_resolves_to_its_own_keys_and_names_its_mediator() -> None:
    alice = Identity.create("alice", "did:web:mediator.test")
    document = decentrl.resolve(alice.did)
    assert document is not None
    assert document.signing_keys == {alice.signing_key_id: public_key(alice.signing_seed)}
    assert decentrl.mediator_of(alice.did) == "did:web:mediator.test"


def test_every_identity_has_keys_of_its_own() -> None:
    one, two = (Identity.create("alice", "did:web:mediator.test") for _ in range(2))
    assert one.did != two.did
    assert one.storage_key != two.storage_key


def test_an_identity_comes_back_from_its_file_which_only_the_owner_can_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "alice.json"
    alice = Identity.create("alice", "did:web:mediator.test")
    alice.contract_keys["public"] = bytes(32)
    alice.save(path)
    assert Identity.load(path) == alice
    assert path.stat().st_mode & 0o777 == 0o600
    alice.contract_keys["another"] = bytes(32)
    alice.save(path)
    assert Identity.load(path).contract_keys.keys() == {"public", "another"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_others_can_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "alice.json"
    Identity.create("alice", "did:web:mediator.test").save(path)
    path.chmod(0o640)
    with pytest.raises(UnusableIdentity, match="chmod 600"):
        Identity.load(path)


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"did": 1}'])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "alice.json"
    Identity.create("alice", "did:web:mediator.test").save(path)
    path.write_text(damage)
    with pytest.raises(UnusableIdentity):
        Identity.load(path)


def test_a_file_whose_did_names_another_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "alice.json"
    alice, eve = (Identity.create(name, "did:web:mediator.test") for name in ("alice", "eve"))
    alice.save(path)
    path.write_text(path.read_text().replace(alice.did, eve.did))
    with pytest.raises(UnusableIdentity, match="another signing key"):
        Identity.load(path)


@pytest.mark.parametrize(
    ("member", "named"), [("prekey_private", "pre-key"), ("mediator_did", "mediator")]
)
def test_a_file_with_another_prekey_or_mediator_than_its_did_names_is_refused(
    tmp_path: Path, member: str, named: str
) -> None:
    path = tmp_path / "alice.json"
    alice = Identity.create("alice", "did:web:mediator.test")
    eve = Identity.create("eve", "did:web:other.test")
    replace(alice, **{member: getattr(eve, member)}).save(path)
    with pytest.raises(UnusableIdentity, match=f"another {named}"):
        Identity.load(path)


def test_a_file_with_a_damaged_contract_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "alice.json"
    alice = Identity.create("alice", "did:web:mediator.test")
    alice.contract_keys["public"] = bytes(31)
    alice.save(path)
    with pytest.raises(UnusableIdentity, match="key of a contract"):
        Identity.load(path)


def test_no_secret_shows_in_the_representation() -> None:
    alice = Identity.create("alice", "did:web:mediator.test")
    alice.contract_keys["public"] = bytes(32)
    assert repr(alice) == f"Identity(did={alice.did!r}, mediator_did='did:web:mediator.test')"


def test_encrypted_tags_are_equal_for_equal_tags_of_one_identity_alone() -> None:
    alice, bob = (Identity.create(name, "did:web:mediator.test") for name in ("alice", "bob"))
    assert alice.encrypt_tag("chat") == alice.encrypt_tag("chat")
    assert alice.encrypt_tag("chat") != alice.encrypt_tag("chats")
    assert alice.encrypt_tag("chat") != bob.encrypt_tag("chat")


def test_only_the_own_storage_key_opens_stored_events() -> None:
    alice, bob = (Identity.create(name, "did:web:mediator.test") for name in ("alice", "bob"))
    sealed = alice.seal_for_storage(b"secret")
    assert alice.open_from_storage(sealed) == b"secret"
    with pytest.raises(NotAuthentic):
        bob.open_from_storage(sealed)
    with pytest.raises(NotAuthentic):
        alice.open_from_storage("not base64!")


def test_a_signature_covers_the_canonical_form() -> None:
    alice = Identity.create("alice", "did:web:mediator.test")
    key = public_key(alice.signing_seed)
    assert verify_object(key, {"b": 2, "a": 1}, alice.sign({"a": 1, "b": 2}))
    assert not verify_object(key, {"b": 2, "a": 3}, alice.sign({"a": 1, "b": 2}))
