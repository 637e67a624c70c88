"""The checker in the guide, which has no line of Poste, agrees with what Poste writes."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import base58
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rfc8785

from eventstore.log.erasure_receipt import Run, erasure_of, sign_receipt
from eventstore.log.event_contents import CONTENT_FIELDS
from eventstore.log.event_declaration import NAME
from eventstore.log.event_log import EventLog
from eventstore.log.events import TOPIC_BY_TYPE
from eventstore.log.proof import ProofRefused, check_proof, proof_bytes
from eventstore.log.redaction import redacted_state
from eventstore.log.streams import erased_name, identity_stream
from eventstore.parquet.files import END, HEAD, ExportPlace, open_place
from eventstore.parquet.proofs import message_proof
from eventstore.parquet.tree import CHECKPOINT
from eventstore.parquet.versions import COMMIT_MEMBER, commit_path
from eventstore.stores.open_log import open_log
from http_edge.crypto.signatures import sign
from tests.contract.test_erasure_contract import erase
from tests.contract.test_retention_contract import Mediator
from tests.deploy.manifests import DEPLOY
from tests.export.forging import TRUSTED, SampleExport, with_value
from tests.export.leaving import BOUNDS, leave, played, prune, read_ids
from tests.export.samples import SEED, SIGNED_BY, catalog_of, export_all
from tests.export.test_names_in_export import GONE, STEPS, log, mediator, take_out
from tests.export.test_proofs import STREAMS, lives_in
from tests.histories import MEDIATOR, random_script

__all__ = ["log", "mediator"]
KEY = "z" + base58.b58encode(b"\xed\x01" + TRUSTED.raw).decode()
Check = Callable[..., str]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleExport:
    return SampleExport(tmp_path_factory.mktemp("sample"))


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(DEPLOY / "docs/examples")
    yield import_module("check_evidence")
    for name in ("check_evidence", "sealed_rows"):
        del sys.modules[name]


@pytest.fixture
def check(example: ModuleType, tmp_path: Path) -> Check:
    """What the checker says is wrong with an export or with files beside it; empty for nothing."""

    def checked(place: ExportPlace, *files: bytes, key: str = KEY) -> str:
        paths = [tmp_path / f"evidence-{number}" for number in range(len(files))]
        for path, content in zip(paths, files, strict=True):
            path.write_bytes(content)
        try:
            example.main(place.root, key, *map(str, paths))
        except (SystemExit, ValueError, KeyError) as said:  # what is no JSON at all raises
            return str(said) or "?"
        return ""

    return checked


def test_an_export_its_heads_and_its_proofs_are_as_signed(
    sample: SampleExport, check: Check, tmp_path: Path
) -> None:
    catalog = catalog_of(sample.place)
    heads = [sample.place.read(CHECKPOINT)]
    proofs = [
        proof_bytes(message_proof(sample.place, catalog, TRUSTED, name, STREAMS[stream], seals))
        for name, (stream, _, seals) in [*lives_in(sample).items()][:20]
    ]
    name, (stream, _, seals) = next(iter(lives_in(sample).items()))
    did = erased_name(STREAMS[stream])
    of_erased = proof_bytes(message_proof(sample.place, catalog, TRUSTED, name, did, seals))
    assert check(sample.place, *heads, *proofs, of_erased) == ""
    assert "not about this message" in check(
        sample.place, of_erased.replace(did.encode(), erased_name("did:x:other").encode())
    )
    assert "not signed" in check(sample.place, key="z" + base58.b58encode(bytes(34)).decode())
    (size,) = heads[0].split(b"\n")[1:2]
    assert "evidence-0" in check(sample.place, heads[0].replace(size, b"1" + size))
    changes = [(b'"version":', b'"version":1'), (b'"index":', b'"index":1')]
    for old, new in (*changes, (b'","topic":', b'ff","topic":')):
        assert check(sample.place, proofs[0].replace(old, new, 1))


def test_a_proof_that_leaves_out_repeats_or_adds_something_is_refused(
    sample: SampleExport, check: Check
) -> None:
    name, (stream, _, seals) = max(lives_in(sample).items(), key=lambda one: len(one[1][2]))
    catalog = catalog_of(sample.place)
    proof = message_proof(sample.place, catalog, TRUSTED, name, STREAMS[stream], seals)
    said = msgspec.to_builtins(proof)
    first, second, *rest = said["seals"]
    state = msgspec.msgpack.decode(base64.b64decode(first["state"]))
    others = [
        base64.b64encode(msgspec.msgpack.encode(state | change)).decode()
        for change in ({"command": b"1"}, {"added": 1})
    ]
    for changed in (
        [],
        [second, *rest],
        [second, first, *rest],
        [first, second, second, *rest],
        [first | {"index": first["index"] + (1 << 40)}, second, *rest],
        *([first | {"state": other}, second, *rest] for other in others),
    ):
        content = rfc8785.dumps(said | {"seals": changed}) + b"\n"
        with pytest.raises(ProofRefused):
            check_proof(content, TRUSTED)
        assert check(sample.place, content)
    whole = rfc8785.dumps(said) + b"\n"
    assert (whole, check(sample.place, whole)) == (proof_bytes(proof), "")


def test_a_flipped_bit_is_named_in_every_file_that_it_reads(
    sample: SampleExport, check: Check
) -> None:
    catalog = catalog_of(sample.place)
    assert catalog.version is not None
    manifests = [statement.manifest for statement in catalog.statements]
    named = [*(one.path for one in manifests), *(one.path for one in catalog.files)]
    for path in (*named, HEAD, END, CHECKPOINT, catalog.version.summary):
        content = sample.contents[path]
        for at in (len(content) // 3, len(content) - 9):
            with sample.tampered():
                sample.put(path, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
                said = check(sample.place)
                assert said
                assert said.startswith(path) or path not in named
    with sample.tampered():
        sample.remove(named[0])
        assert check(sample.place) == f"{named[0]}: it is missing"
    commit = commit_path(catalog.version.version)
    with sample.tampered():
        sample.put(commit, sample.contents[commit] + b"\n{}\n")
        assert "another newest commit" in check(sample.place)


def test_a_value_that_was_changed_is_named_though_all_is_signed(
    sample: SampleExport, check: Check
) -> None:
    path = next(iter(sample.files))
    table = sample.tables[path]
    topics = list(zip(table["type"].to_pylist(), table["type_version"].to_pylist(), strict=True))
    row = topics.index(("message-queued", 2))
    position = table["position"][row].as_py()
    state = table["state"][row].as_py()
    for column, value in (
        ("version", table["version"][row].as_py() + 1),
        ("state", state.replace(b"decentrl", b"decentrm")),
        ("stream", bytes(16)),
    ):
        with sample.tampered():
            sample.forge(path, partial(with_value, row=row, column=column, value=value))
            where, _, why = check(sample.place).partition(": ")
            assert position <= int(where.removeprefix("position ")) <= position + 8, why


def test_a_manifest_without_rows_is_named(sample: SampleExport, check: Check) -> None:
    manifest = next(one for one in sample.manifests if len(one.files) == 1)
    (file,) = manifest.files
    empty = pa.BufferOutputStream()
    pq.write_table(sample.tables[file.path].slice(0, 0), empty)
    content = empty.getvalue().to_pybytes()
    with sample.tampered():
        sample.put(file.path, content)
        signed = msgspec.structs.replace(file, sha256=hashlib.sha256(content).hexdigest())
        sample.sign(manifest, files=[signed])
        said = check(sample.place)
    assert said == f"{manifest.path}: its rows do not end with a seal at its last position"


CONTRACT = {"requestor_did": "did:x:stranger", "recipient_did": MEDIATOR, "expires_at": 2e9}


def _sign_newest_again(sample: SampleExport, **added: dict[str, Any]) -> dict[str, str]:
    """Sign the newest statements again, some with members added; their paths by name."""

    def again(name: str, content: bytes, **changed: Any) -> bytes:
        said = json.loads(content) | changed | added.get(name, {})
        del said["signature"]
        return rfc8785.dumps(said | {"signature": sign(SEED, rfc8785.dumps(said)).hex()})

    catalog = catalog_of(sample.place)
    assert catalog.version is not None
    path, commit = catalog.statements[-1].manifest.path, commit_path(catalog.version.version)
    manifest = again("manifest", sample.contents[path])
    since = dict(catalog.version.since) | {path: hashlib.sha256(manifest).hexdigest()}
    assert since.keys() == catalog.version.since.keys()
    actions = [json.loads(line) for line in sample.contents[commit].splitlines()]
    for action in actions:
        if "commitInfo" in action:
            said = action["commitInfo"][COMMIT_MEMBER].encode()
            action["commitInfo"][COMMIT_MEMBER] = again("commit", said, since=since).decode()
    written = b"".join(json.dumps(action).encode() + b"\n" for action in actions)
    sample.put(path, manifest)
    sample.put(commit, written)
    sha256 = hashlib.sha256(written).hexdigest()
    sample.put(END, again("end", sample.contents[END], commit=sha256))
    sample.put(HEAD, again("export", sample.contents[HEAD]))
    return {"manifest": path, "commit": commit, "end": END, "export": HEAD}


@pytest.mark.parametrize("name", ["manifest", "commit", "end", "export"])
def test_a_contract_that_the_key_has_signed_is_no_statement(
    sample: SampleExport, check: Check, name: str
) -> None:
    with sample.tampered():
        _sign_newest_again(sample)
        assert check(sample.place) == ""
        paths = _sign_newest_again(sample, **{name: CONTRACT})
        assert check(sample.place) == (
            f"{paths[name]}: it has members that are none of such a statement:"
            " expires_at, recipient_did, requestor_did"
        )
        assert paths[name] in {finding.path for finding in sample.check()[0]}


def test_erased_names_are_accepted_of_who_was_erased_alone(
    mediator: Mediator, log: EventLog, place: ExportPlace, check: Check
) -> None:
    erase(mediator, GONE)
    export_all(log, place, STEPS)
    assert take_out(log, place).names > 20
    assert check(place) == ""


def test_a_name_that_is_gone_for_no_reason_is_named(sample: SampleExport, check: Check) -> None:
    path = next(iter(sample.files))
    table = sample.tables[path]
    row = table["type"].to_pylist().index("message-queued")
    state = table["state"][row].as_py()
    fact = state[5 + int.from_bytes(state[1:5], "big") :] if state[:1] == b"\xc6" else state
    redacted = redacted_state("message-queued.2", fact)
    assert redacted not in {None, fact}
    with sample.tampered():
        sample.forge(path, partial(with_value, row=row, column="state", value=redacted))
        assert "a name is gone" in check(sample.place)


def test_a_pruned_archive_and_a_head_of_before_are_as_signed(tmp_path: Path, check: Check) -> None:
    place = open_place(str(tmp_path / "archive"))
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        history = played(log)
        read_ids(history)
        leave(log, place)
        head = place.read(CHECKPOINT)
        assert prune(log, place) > 0
        history.play(random_script(5, 40))
        export_all(log, place, BOUNDS)
    assert check(place, head) == ""
    path = catalog_of(place).files[0].path
    place.write(path, place.read(path)[:-1])
    assert check(place, head) == f"{path}: its SHA-256 is not the signed one"


def test_a_receipt_is_compared_with_rows_and_contents(
    mediator: Mediator, log: EventLog, place: ExportPlace, check: Check
) -> None:
    log.setting("mediator_did", MEDIATOR)
    erase(mediator, GONE)
    export_all(log, place, STEPS)
    receipt = erasure_of(log, identity_stream(GONE), SIGNED_BY)
    signed = partial(sign_receipt, sign=partial(sign, SEED))
    names_none = msgspec.structs.replace(receipt, positions=[], contents={})
    for claimed in (receipt, names_none):
        assert "is still there" in check(place, signed(claimed))
    take_out(log, place)
    assert check(place, signed(receipt)) == ""
    for other in (
        {"begun": receipt.begun - 1},
        {"ended_at_ms": receipt.ended_at_ms + 1},
        {"stream": bytes(16).hex()},
        {"positions": [*receipt.positions, Run(1, 1)]},
    ):
        assert "evidence-0" in check(place, signed(msgspec.structs.replace(receipt, **other)))
    assert "not signed" in check(place, signed(receipt).replace(b"operator", b"owner"))


def test_the_checker_knows_the_names_and_contents_of_every_type(example: ModuleType) -> None:
    rows = import_module("sealed_rows")
    for kind, topic in TOPIC_BY_TYPE.items():
        named = {
            field
            for field, hint in get_type_hints(kind, include_extras=True).items()
            if NAME in getattr(hint, "__metadata__", ())
        }
        assert set(rows.NAMES.get(topic.rpartition(".")[0], "").split()) == named, topic
    assert set(CONTENT_FIELDS.values()) == rows.CONTENTS


def test_the_checker_says_how_it_is_called() -> None:
    program = [sys.executable, str(DEPLOY / "docs/examples/check_evidence.py"), "export"]
    ran = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("python check_evidence.py EXPORT PUBLIC-KEY")
