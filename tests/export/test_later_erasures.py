"""A restore says who was erased behind the end of the log, and is in it again."""

from __future__ import annotations

import json
import shlex
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import base58
import pytest

from actors.core.commands import EraseIdentity
from actors.core.erasure import ELSEWHERE
from actors.core.replies import Erased
from eventstore.log.streams import identity_stream
from eventstore.parquet.files import open_place
from eventstore.stores.open_log import open_log
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server.exits import Exit
from http_edge.server.exporting import exporter_of
from http_edge.settings.settings import Export, Settings
from tests.contract.test_erasure_contract import GONE, erase, settle
from tests.contract.test_foreign_names import erase_foreign
from tests.contract.test_name_erasure_contract import take_out_names
from tests.contract.test_retention_contract import DAY_S, FRIEND, Mediator
from tests.export.test_restore import export
from tests.histories import MEDIATOR
from tests.unit.actors.given import NOW_S, registration, submission, unclaimed
from tests.unit.actors.given import run as run_commands
from tests.unit.cli.conftest import Run, run

__all__ = ["run"]

LATE, STAYS = "did:x:late", "did:x:stays"


@pytest.fixture
def end(tmp_path: Path) -> int:
    """The end of a backup, behind which one of its identities was erased, and another one."""
    data = tmp_path / "data"
    data.mkdir()
    keys = load_or_create(data / "mediator-keys.json")
    with closing(open_log(f"sqlite:{data / 'log.db'}")) as log:
        log.setting("mediator_did", MEDIATOR)
        log.setting("mediator_key", base58.b58encode(keys.signing_public).decode())
        log.setting("shards", "16")
        mediator = Mediator(log)
        settle(mediator, GONE)
        settle(mediator, STAYS)
        with (
            closing(sqlite3.connect(data / "log.db")) as source,
            closing(sqlite3.connect(tmp_path / "backup.db")) as backup,
        ):
            source.backup(backup)
        end = log.position()
        settle(mediator, LATE)
        for did in (LATE, GONE):
            erase(mediator, did)
    export(data, f"sqlite:{data / 'log.db'}", tmp_path / "out")
    return end


def _restored(run: Run, tmp_path: Path, *options: str) -> Mapping[str, Any]:
    named = ("--to", "new", "--keys", str(tmp_path / "data" / "mediator-keys.json"))
    ran = run("restore", *options, *named, "--json")
    assert ran.code == Exit.OK, ran.err
    shutil.rmtree("new")
    said: Mapping[str, Any] = json.loads(ran.out)
    return said


def test_a_restore_names_who_was_erased_behind_its_end_by_whatever_went_on_further(
    run: Run, tmp_path: Path, end: int
) -> None:
    out = str(tmp_path / "out")
    for options in (
        ("--from", str(tmp_path / "backup.db"), "--archive", out),
        ("--from", out, "--as-of", str(end)),
        ("--from", str(tmp_path / "data" / "log.db"), "--as-of", str(end)),
    ):
        said = _restored(run, tmp_path, *options)
        (gone,) = said["erased_later"]
        assert (gone["did"], gone["stream"]) == (GONE, identity_stream(GONE).hex)
        assert said["erasures_known_to"] > end
        command = shlex.split(gone["next"])
        assert command[:4] == ["poste", "identities", "erase", GONE]
        assert command[4:] == ["--data-dir", str(Path("new").absolute())]


def test_a_restore_of_rows_that_lost_the_name_of_who_was_erased_tells_the_stream(
    run: Run, tmp_path: Path, end: int
) -> None:
    data, out = tmp_path / "data", str(tmp_path / "out")
    with closing(open_log(f"sqlite:{data / 'log.db'}")) as log:
        settings = Settings(data_dir=data, did=MEDIATOR, export=Export(to=out))
        with exporter_of(settings, log, open_place(out)) as exporter:
            exporter.take_out_erased()
    (gone,) = _restored(run, tmp_path, "--from", out, "--as-of", str(end))["erased_later"]
    assert (gone["did"], gone["stream"]) == (None, identity_stream(GONE).hex)


def test_a_restore_says_up_to_where_it_knows_who_was_erased(
    run: Run, tmp_path: Path, end: int
) -> None:
    said = _restored(run, tmp_path, "--from", str(tmp_path / "backup.db"))
    assert (said["erased_later"], said["erasures_known_to"]) == ([], end)
    keys = str(tmp_path / "data" / "mediator-keys.json")
    shown = run("restore", "--from", str(tmp_path / "backup.db"), "--to", "new", "--keys", keys)
    assert f"Erasures behind position {end} are unknown here" in shown.out
    options = ("--archive", str(tmp_path / "out"), "--to", "other", "--keys", keys)
    shown = run("restore", "--from", str(tmp_path / "backup.db"), *options)
    assert f"  poste identities erase {GONE} --data-dir" in shown.out


@pytest.mark.parametrize("is_nameless", [False, True])
@pytest.mark.parametrize("who", ["never here", "came later", "of another database"])
def test_a_restore_names_who_was_erased_later_and_stands_in_rows_of_others_alone(
    run: Run, tmp_path: Path, end: int, who: str, *, is_nameless: bool
) -> None:
    """Even if the log that went on has lost the name: the rows before the end have it."""
    data, out = tmp_path / "data", str(tmp_path / "out")
    with closing(open_log(f"sqlite:{data / 'log.db'}")) as log:
        mediator = Mediator(log, name="later")
        if who == "of another database":
            (known,) = run_commands(mediator.host, unclaimed(FRIEND, EraseIdentity(ELSEWHERE, 1)))
            assert known == Erased(0, is_over=True)
        elif who == "came later":
            signed = registration(FRIEND, NOW_S + 9 * DAY_S)
            run_commands(mediator.host, submission(FRIEND, signed))
            erase(mediator, FRIEND)
        else:
            erase_foreign(mediator, FRIEND)
        if is_nameless:
            take_out_names(log)
    export(data, f"sqlite:{data / 'log.db'}", tmp_path / "out")
    said = _restored(run, tmp_path, "--from", out, "--as-of", str(end))["erased_later"]
    (one,) = [one for one in said if one["stream"] == identity_stream(FRIEND).hex]
    assert one["did"] == FRIEND
    assert shlex.split(one["next"])[3:5] == [FRIEND, "--foreign"]
    assert len(said) == 2
