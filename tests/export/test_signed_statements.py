"""What the mediator's key signs for a stranger is none of its own statements."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import msgspec
import pytest
import rfc8785
from msgspec.inspect import StructType, type_info

import eventstore
from eventstore.log.erasure_receipt import (
    ErasureReceipt,
    ReceiptRefused,
    sign_receipt,
    verified_receipt,
)
from eventstore.log.errors import SeamRefused
from eventstore.log.public_key import PublicKey
from eventstore.log.seam import Seam, read_seam
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.manifest import (
    ExportHead,
    Manifest,
    SealedHead,
    SignedStatement,
    parse_statement,
    signature_damage,
    signed,
)
from eventstore.parquet.verify.mark import VerifiedMark
from eventstore.parquet.versions import EndMark, TableVersion
from tests.deploy.manifests import DEPLOY
from tests.export.samples import KEY, SIGNER, VERIFY
from tests.tidy.modules import ROOT
from tests.unit.wire.test_contract_profile import is_invalid, register_with

PUBLISHED: Final = {
    "export.json": ExportHead,
    "end.json": EndMark,
    "a manifest": Manifest,
    "a commit": TableVersion,
}
OWN: Final[list[type[Any]]] = [*PUBLISHED.values(), VerifiedMark, Seam, ErasureReceipt]
"""All statements that are read by their signature."""
SIGNING: Final = {
    "http_edge/decentrl/contracts.py": "a registration: the members are a stranger's",
    "http_edge/dids/contract_profile.py": "the same",
    "http_edge/cli/erasure.py": "a receipt, with a prefix",
    "http_edge/server/exporting.py": "statements of an export, and heads",
    "http_edge/server/verified_marks.py": "statements about what was verified",
    "actors/archive/archived_states.py": "a seam, with a prefix",
    "actors/archive/seam_writer.py": "the same",
}
"""Where the mediator's key signs, and what."""


def _structs(kind: Any) -> Iterator[StructType]:
    """A struct, and all that it has inside."""
    if isinstance(kind, StructType):
        yield kind
    for member in getattr(kind, "__struct_fields__", ()):
        value = getattr(kind, member)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, msgspec.inspect.Type | msgspec.inspect.Field):
                yield from _structs(each)


def test_every_kind_of_statement_is_listed() -> None:
    for module in pkgutil.walk_packages(eventstore.__path__, "eventstore."):
        import_module(module.name)
    assert set(SignedStatement.__subclasses__()) == {*PUBLISHED.values(), VerifiedMark}
    assert not [each for kind in OWN for each in kind.__subclasses__()]


@pytest.mark.parametrize("kind", OWN)
def test_a_reader_of_a_statement_refuses_members_that_it_does_not_know(kind: type[Any]) -> None:
    structs = list(_structs(type_info(kind)))
    assert kind in {struct.cls for struct in structs}
    assert [struct.cls for struct in structs if not struct.forbid_unknown_fields] == []


def test_a_receipt_and_a_seam_with_another_member_are_refused() -> None:
    text = PublicKey(KEY).text
    receipt = ErasureReceipt(
        mediator_did="m", stream="", reason="", begun=1, begun_at_ms=1, ended=2, ended_at_ms=2,
        contents={}, positions=[], signed_by=text,
    )  # fmt: skip

    def signed_with(said: bytes, added: bytes) -> bytes:
        return said.replace(b"{", b"{" + added, 1)

    for added, is_read in ((b"", True), (b'"requestor_did":"did:x:a",', False)):
        said = signed_with(msgspec.json.encode(receipt, order="sorted"), added)
        signature = SIGNER.sign(b"poste erasure receipt\n" + said).hex().encode()
        seam = signed_with(msgspec.json.encode(Seam(mediator_did="m", signed_by=text)), added)
        if is_read:
            assert verified_receipt(said + b"\n" + signature, PublicKey(KEY)) == receipt
            assert sign_receipt(receipt, SIGNER.sign) == said + b"\n" + signature + b"\n"
            read_seam(seam.decode())
            continue
        with pytest.raises(ReceiptRefused):
            verified_receipt(said + b"\n" + signature, PublicKey(KEY))
        with pytest.raises(SeamRefused):
            read_seam(seam.decode())


@pytest.mark.parametrize(
    "text", ["plain", 'a "quoted\\ one"', "é", "\x00\n\x1f", "\x7f\u2028", "\ufb00\U00010000"]
)
@pytest.mark.parametrize("number", [0, -1, 10**15, -(10**15), 2**53 - 1, 1 - 2**53])
def test_a_statement_is_stored_as_canonical_json_whatever_it_says(text: str, number: int) -> None:
    keys = (*text, "a", "B", "a-", "aa", "signature")
    head = SealedHead(number, f"{text}:{number}")
    manifest = Manifest(
        format=number, schema=1, first=1, last=number, rows=1, files=[], replaces=[text],
        heads=dict.fromkeys(keys, head), stands_for=text, previous="", signed_by="",
    )  # fmt: skip
    complete, stored = signed(manifest, SIGNER.sign)
    members = msgspec.to_builtins(manifest)
    assert VERIFY(rfc8785.dumps(members), bytes.fromhex(complete.signature))
    assert stored == rfc8785.dumps(members | {"signature": complete.signature})
    assert list(signature_damage("", complete, stored, VERIFY)) == []


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**63, 2**64, 10**30, -(10**30)])
def test_a_number_that_canonical_json_cannot_say_is_no_statement(number: int) -> None:
    head = ExportHead(format=1, schema=1, mediator_did="", shards=123, public_key="")
    _, stored = signed(head, lambda _: b"\x01")
    with pytest.raises(ExportDamaged) as said:
        parse_statement("export.json", stored.replace(b"123", b"%d" % number), ExportHead)
    assert said.value.damage is Damage.BROKEN_MANIFEST


@pytest.mark.parametrize("kind", PUBLISHED.values(), ids=PUBLISHED.keys())
def test_the_mediator_signs_no_contract_with_a_member_of_a_statement(
    kind: type[SignedStatement],
) -> None:
    kept = {
        member for member in kind.__struct_fields__ if not is_invalid(register_with(**{member: 1}))
    }
    assert kept <= {"format", "schema", "version", "signature"}


def test_no_contract_has_all_that_a_mark_of_verification_needs() -> None:
    assert is_invalid(register_with(signed_by=1))
    assert "signed_by" in VerifiedMark.__struct_fields__


def test_the_checker_without_poste_knows_the_members_of_every_statement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(DEPLOY / "docs/examples")
    known = import_module("sealed_rows").STATEMENTS
    assert {name: set(members.split()) for name, members in known.items()} == {
        name: set(kind.__struct_fields__) - {"signature"} for name, kind in PUBLISHED.items()
    }


def test_it_is_known_where_the_key_of_the_mediator_signs() -> None:
    used = re.compile(r"\bkeys?\.sign\b|\bsigning_seed\b|\bsign_object\(")
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("http_edge", "actors", "eventstore")
        for path in (ROOT / folder).rglob("*.py")
        if used.search(path.read_text("utf-8"))
    }
    own = {path for path in found if not path.startswith(("http_edge/clients", "http_edge/crypto"))}
    assert own == set(SIGNING)
