"""``poste verify``: what is said of an export, and how it ends."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from eventstore.log.public_key import PublicKey
from eventstore.log.tree_head import read_head, sign_head
from eventstore.parquet.errors import Damage
from eventstore.parquet.files import open_place
from eventstore.parquet.verify.against_log import compare_end
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportSummary
from eventstore.stores.open_log import open_log
from http_edge.crypto import signatures
from http_edge.crypto.mediator_keys import load_or_create, operators_token
from http_edge.server.exits import Exit
from tests.export.samples import contents, registered
from tests.export.test_cli import _mediator
from tests.log.samples import AT_MS, SealedWriter
from tests.unit.cli.conftest import Run, run

__all__ = ["run"]
TWO = "postgresql://127.0.0.1:9/one postgresql://127.0.0.1:9/two"
"""A log that no mediator serves."""


def test_an_export_is_as_it_was_written(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        run("export", "--data-dir", "data", "--to", "out")
        ran = run("verify", "--data-dir", "data", "--from", "out", "--json")
        assert (ran.code, ran.err) == (Exit.OK, "")
        said = json.loads(ran.out)
        assert (said["summary"]["rows"], said["findings"], said["live"]) == (50, [], None)
        assert said["summary"]["key_is_trusted"]
        (tmp_path / "known.json").write_text(ran.out)
        place = f"export.to={tmp_path}/out"
        again = run("verify", "--data-dir", "data", "--set", place, "--known", "known.json")
        assert (again.code, "unchanged since it was written" in again.out) == (Exit.OK, True)


def test_the_json_of_a_check_has_every_figure_of_its_table_by_the_same_name(
    run: Run, tmp_path: Path
) -> None:
    with _mediator(tmp_path / "data"):
        run("export", "--data-dir", "data", "--to", "out")
        check = ("verify", "--data-dir", "data", "--from", "out")
        _, _, *rows = run(*check).out.splitlines()
        summary = json.loads(run(*check, "--json").out)["summary"]
    names = {row.split()[0] for row in rows if re.match(r" \w", row)}
    assert {"position", "pruned_up_to", "verified_before_up_to"} < names
    assert names - summary.keys() == set()


def test_without_the_keys_the_export_proves_only_itself(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        run("export", "--data-dir", "data", "--to", "out")
        ran = run("verify", "--data-dir", "elsewhere", "--from", "out")
        assert (ran.code, "the signer is not known" in ran.err) == (Exit.OK, True)
        assert "not known: no key was named" in ran.out
        load_or_create(tmp_path / "other" / "mediator-keys.json")
        other = run("verify", "--data-dir", "other", "--from", "out", "--json")
        assert (other.code, other.err) == (Exit.FINDING, "")
        assert "bad signature" in other.out


def test_who_names_the_public_key_needs_no_secret(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        run("export", "--data-dir", "data", "--to", "out")
        shown = json.loads(run("keys", "--data-dir", "data", "--json").out)
        check = ("verify", "--data-dir", "elsewhere", "--from", "out", "--json", "--public-key")
        for key in (shown["signing_key"], *shown["verifier_keys"]):
            ran = run(*check, key)
            said = json.loads(ran.out)
            assert (ran.code, ran.err, said["summary"]["key_is_trusted"]) == (Exit.OK, "", True)
        other = PublicKey(bytes(range(1, 33))).text
        ran = run(*check, other)
        assert (ran.code, "bad signature" in ran.out) == (Exit.FINDING, True)
        # The key that is named counts, whatever the data directory has.
        ran = run("verify", "--data-dir", "data", "--from", "out", "--public-key", other)
        assert (ran.code, "bad signature" in ran.out) == (Exit.FINDING, True)
        assert run(*check, "no key").code == Exit.USAGE


def test_an_auditor_needs_nothing_of_another_users_data_directory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _mediator(tmp_path / "data"):
        run("export", "--data-dir", "data", "--to", "out")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("http_edge.cli.public_key.load", refuse)
    ran = run("verify", "--from", "out")
    assert (ran.code, "the signer is not known" in ran.err) == (Exit.OK, True)
    named = run("verify", "--from", "out", "--data-dir", "data")
    assert (named.code, "mediator-keys.json cannot be used" in named.err) == (Exit.USAGE, True)


def test_a_head_that_a_witness_holds_is_continued_or_named(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        run("export", "--data-dir", "data", "--to", "out")
        held = (tmp_path / "out" / "tree" / "checkpoint").read_bytes()
        (tmp_path / "held").write_bytes(held)
        check = ("verify", "--data-dir", "data", "--from", "out", "--json", "--witnessed")
        ran = run(*check, "held")
        assert (ran.code, json.loads(ran.out)["findings"]) == (Exit.OK, [])
        (tmp_path / "none").write_text("no note")
        refused = run(*check, "none")
        assert (refused.code, "is not a signed head" in refused.err) == (Exit.USAGE, True)
        keys = load_or_create(tmp_path / "data" / "mediator-keys.json")
        head = read_head(held)
        for size, fault in ((head.size + 1, "missing-head"), (head.size, "wrong-tree")):
            forked = sign_head(
                head._replace(size=size, root=bytes(32)),
                PublicKey(keys.signing_public),
                partial(signatures.sign, keys.signing_seed),
            )
            (tmp_path / "forked").write_bytes(forked)
            ran = run(*check, "forked", "--witnessed", "held")
            said = json.loads(ran.out)["findings"]
            found = [(one["fault"], one["path"]) for one in said]
            assert (ran.code, found) == (Exit.FINDING, [(fault, "forked")])


def test_an_export_that_ends_before_the_log_beside_it_is_a_finding(
    run: Run, tmp_path: Path
) -> None:
    check = ("verify", "--data-dir", "data", "--from", "out")
    with _mediator(tmp_path / "data") as (_, growing):
        run("export", "--data-dir", "data", "--to", "out")
        earlier = contents(open_place(str(tmp_path / "out")))
        growing.grow(2)
        ran = run(*check)
        assert (ran.code, "goes on to position 60" in ran.out) == (Exit.FINDING, True)
        # Later than the transactions, as when the exporter is only about to write them.
        soon = ("--set", "export.settled_s=3600", "--set", "export.lag_s_max=86400")
        assert run(*check, *soon).code == Exit.FINDING
        run("export", "--data-dir", "data", "--to", "out")
        assert run(*check).code == Exit.OK
        shutil.rmtree(tmp_path / "out")
        for path, content in earlier.items():
            open_place(str(tmp_path / "out")).write(path, content)
        rolled_back = run(*check)
        assert (rolled_back.code, "ends early" in rolled_back.out) == (Exit.FINDING, True)
        assert run("verify", "--data-dir", "elsewhere", "--from", "out").code == Exit.OK


def test_what_was_recorded_just_now_may_be_missing(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data") as (log, growing):
        run("export", "--data-dir", "data", "--to", "out")
        *_, summary = verify_export(open_place(str(tmp_path / "out")), None)
        assert isinstance(summary, ExportSummary)
        growing.grow()
        assert [*compare_end(log, summary, recorded_before_ms=AT_MS)] == []
        (finding,) = compare_end(log, summary, recorded_before_ms=AT_MS + 1)
        assert (finding.first_position, finding.fault) == (51, Damage.ENDS_EARLY)


def test_an_export_that_ends_before_a_large_transaction_is_a_finding(
    run: Run, tmp_path: Path
) -> None:
    with _mediator(tmp_path / "data") as (log, _):
        run("export", "--data-dir", "data", "--to", "out")
        *_, summary = verify_export(open_place(str(tmp_path / "out")), None)
        assert isinstance(summary, ExportSummary)
        SealedWriter(log).commit({"shard-2": [registered(number) for number in range(100, 1_300)]})
        (finding,) = compare_end(log, summary, recorded_before_ms=AT_MS + 1)
        assert finding.fault == Damage.ENDS_EARLY
        assert (finding.first_position, finding.last_position) == (51, 50 + 1_200 + 1)


def test_json_says_whether_the_end_of_the_export_was_compared_with_the_log(
    run: Run, tmp_path: Path
) -> None:
    with _mediator(tmp_path / "data"):
        run("export", "--data-dir", "data", "--to", "out")
    check = ("verify", "--data-dir", "data", "--from", "out", "--json")
    assert json.loads(run(*check).out)["compared_with_log"] is True
    (tmp_path / "other.db").write_text("no log")
    for log in ("other.db", "missing.db"):
        ran = run(*check, "--log", f"sqlite:{tmp_path / log}")
        assert (ran.code, json.loads(ran.out)["compared_with_log"]) == (Exit.OK, False)


def test_an_export_of_another_log_is_a_finding(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        run("export", "--data-dir", "data", "--to", "out")
    keys = f"keys_file={tmp_path}/data/mediator-keys.json"
    with closing(open_log(f"sqlite:{tmp_path / 'other.db'}")) as log:
        SealedWriter(log).commit({"shard-0": [registered(7)]})
    other = ("--log", f"sqlite:{tmp_path / 'other.db'}", "--set", keys)
    ran = run("verify", "--from", "out", *other)
    assert (ran.code, "lacks its seal" in ran.out) == (Exit.FINDING, True)


def test_damage_is_listed_and_nothing_live_is_compared(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        run("export", "--data-dir", "data", "--to", "out")
        first = next((tmp_path / "out").rglob("*.parquet"))
        first.write_bytes(first.read_bytes()[::-1])
        ran = run("verify", "--data-dir", "data", "--from", "out", "--live")
        assert (ran.code, first.name in ran.out) == (Exit.FINDING, True)
        assert "was not compared" in ran.out


def test_live_exports_the_rest_and_asks_a_mediator_that_runs(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        operators_token(tmp_path / "data" / "operators-token")
        url = "http://127.0.0.1:9"
        ran = run("verify", "--data-dir", "data", "--from", "out", "--live", "--url", url)
        assert (ran.code, "no mediator answers" in ran.err) == (Exit.UNREACHABLE, True)
        assert list((tmp_path / "out").rglob("*.parquet"))


def test_exports_of_several_databases_are_checked_one_by_one_and_together(
    run: Run, tmp_path: Path
) -> None:
    keys = f"keys_file={tmp_path}/first/mediator-keys.json"
    for number, name in enumerate(("first", "second")):
        load_or_create(tmp_path / name / "mediator-keys.json")
        with closing(open_log(f"sqlite:{tmp_path / name / 'log.db'}")) as log:
            log.setting("mediator_did", "did:web:mediator.test")
            log.setting("shards", "2")
            writer = SealedWriter(log)
            writer.commit({f"shard-{number}": [registered(number)]})
        run("export", "--data-dir", name, "--to", f"out/db-{number}", "--set", keys)
    check = ("verify", "--data-dir", "first", "--from", "out")
    ran = run(*check, "--json")
    said = json.loads(ran.out)
    assert (ran.code, said["findings"], said["live"]) == (Exit.OK, [], None)
    assert [one["summary"]["rows"] for one in said["databases"]] == [2, 2]
    (tmp_path / "known.json").write_text(ran.out)
    again = run(*check, "--known", "known.json")
    assert (again.code, "The exports are unchanged since they were written" in again.out) == (
        Exit.OK,
        True,
    )
    one = run("verify", "--data-dir", "first", "--from", "out/db-0", "--known", "known.json")
    assert (one.code, "is of 2 databases" in one.err) == (Exit.USAGE, True)
    restored = run("restore", "--from", "out", "--to", "new", "--keys", "first/mediator-keys.json")
    assert (restored.code, "folders db-0 to db-1" in restored.err) == (Exit.USAGE, True)
    live = ("verify", "--data-dir", "first", "--live", "--from")
    assert run(*live, "out", "--log", TWO).code == Exit.UNREACHABLE
    part = run(*live, "out/db-0", "--log", TWO)
    assert (part.code, "the export of one database" in part.err) == (Exit.USAGE, True)
    several = run(*live, "out")
    assert (several.code, "exports of 2 databases" in several.err) == (Exit.USAGE, True)
    (tmp_path / "out" / "db-1").rename(tmp_path / "db-1")
    lost = run(*check)
    assert (lost.code, "1 finding in the exports" in lost.out) == (Exit.FINDING, True)


def test_what_cannot_be_checked_has_its_exit_code(run: Run, tmp_path: Path) -> None:
    assert run("verify").code == Exit.USAGE
    assert run("verify", "--from", "s4://x/y").code == Exit.UNREACHABLE
    (tmp_path / "elsewhere" / "photos").mkdir(parents=True)
    for place in ("nowhere", "elsewhere"):
        ran = run("verify", "--from", place)
        assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
        assert f"there is no export at local:{tmp_path}/{place}" in ran.err
        assert "key" not in ran.err
    assert run("verify", "--from", "out", "--live", "--data-dir", "none").code == Exit.UNREACHABLE
    with _mediator(tmp_path / "data"):
        (tmp_path / "data" / "mediator-keys.json").unlink()
        ran = run("verify", "--from", "out", "--live", "--data-dir", "data")
        assert (ran.code, "there are no mediator keys" in ran.err) == (Exit.USAGE, True)
        assert "--data-dir" in ran.err
