"""``poste verify``: what is said of an export, and how it ends."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from eventstore.stores.open_log import open_log
from http_edge.crypto.mediator_keys import load_or_create, operators_token
from http_edge.server.exits import Exit
from tests.export.samples import registered
from tests.export.test_cli import _mediator
from tests.log.samples import SealedWriter
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
        assert (again.code, "as it was written" in again.out) == (Exit.OK, True)


def test_without_the_keys_the_export_proves_only_itself(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        run("export", "--data-dir", "data", "--to", "out")
        ran = run("verify", "--data-dir", "elsewhere", "--from", "out")
        assert (ran.code, "does not prove who wrote it" in ran.err) == (Exit.OK, True)
        load_or_create(tmp_path / "other" / "mediator-keys.json")
        other = run("verify", "--data-dir", "other", "--from", "out", "--json")
        assert (other.code, other.err) == (Exit.FINDING, "")
        assert "bad signature" in other.out


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
    assert (again.code, "The exports are as they were written" in again.out) == (Exit.OK, True)
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
    assert (lost.code, "1 findings in the exports" in lost.out) == (Exit.FINDING, True)


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
        assert (ran.code, "there are no keys" in ran.err) == (Exit.USAGE, True)
        assert "--data-dir" in ran.err
