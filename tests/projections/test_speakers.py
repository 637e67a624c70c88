"""DIDs that speak for an account after their own erasure: they have their names in tables again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from actors.core import commands as c
from projections.rebuild.rebuild import rebuild
from projections.spark.export import open_export
from projections.tables.agents import ACCOUNT_NAMES, SPEAKERS
from projections.tables.erased import ERASURES, about_names, erased_identities, said_last
from projections.tables.identities import IDENTITIES
from projections.tables.queues import QUEUES
from projections.tables.seals import SEALS
from tests.histories import CROWD, MEDIATOR, START_MS, History
from tests.projections.exports import export_log, take_out_erased
from tests.projections.folding import Rows
from tests.projections.test_rebuild import erase, exported, folded, naming, read
from tests.unit.actors.given import connection

pytestmark = pytest.mark.spark
SOME = (IDENTITIES, ACCOUNT_NAMES, SPEAKERS, QUEUES, SEALS)
"""The tables of these tests: three that name who speaks, and one each with peers and with none."""
ACCOUNT = "did:example:account"
GONE = CROWD.identities[0]


def ask(history: History, did: str, command: c.Command) -> None:
    history._ask(MEDIATOR, did, command)
    history.commit()


def rotate(history: History, prior: str, speaker: str) -> None:
    now_s = history.now_ms // 1000
    ask(history, ACCOUNT, c.RotateAccount(prior, speaker, now_s, connection(speaker)))


def speak_again(history: History) -> None:
    ask(history, ACCOUNT, c.Connect(connection(ACCOUNT)))
    ask(history, GONE, c.NameSpeaker(ACCOUNT))


def be_let_go(history: History) -> None:
    rotate(history, GONE, ACCOUNT)
    ask(history, GONE, c.UnnameSpeaker(ACCOUNT))


def test_an_erased_did_has_its_name_in_tables_while_it_speaks_for_an_account(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the log, which lets its names go again; in tables made at once and continued."""
    monkeypatch.setattr("projections.rebuild.rebuild.PROJECTIONS", SOME)
    names = [each.name for each in SOME]
    with exported(32, acts=60) as (log, folder):
        export = folder / "export"

        def tables_after(act: Callable[[History], None], names_min: int = 0) -> dict[str, Rows]:
            start_ms = START_MS + log.position() * 1_000_000
            other = CROWD._replace(name=f"{log.position()}.", identities=CROWD.agents)
            act(History(log, crowd=other, start_ms=start_ms, after=log.position()))
            export_log(log, export)
            assert take_out_erased(log, export).names >= names_min
            target = folder / "tables"
            made = rebuild(spark, open_export(str(export)), str(target), incremental=True)
            whole = folder / f"whole-{made.generation}"
            anew = read(whole, rebuild(spark, open_export(str(export)), str(whole)))
            tables = read(target, made)
            assert tables == anew == folded(log, names)
            return tables

        rebuild(spark, open_export(str(export)), str(folder / "tables"))
        assert naming(tables_after(lambda history: erase(history, GONE), 11), GONE) == set()
        named = tables_after(speak_again)
        assert {"identities", "account_names"} <= naming(named, GONE)
        speaking = tables_after(lambda history: rotate(history, ACCOUNT, GONE))
        assert {"identities", "account_names", "speakers"} <= naming(speaking, GONE)
        assert naming(tables_after(be_let_go, 1), GONE) == set()


def test_who_is_erased_follows_from_what_is_said_of_it_last(spark: SparkSession) -> None:
    said = {
        "speaks": [ERASURES, "speaker-named did:x"],
        "registered": [ERASURES, "speaker-named did:x", "speaker-named ", "identity-registered"],
        "let go": [ERASURES, "speaker-named did:x", "speaker-named "],
        "of an erased account": [ERASURES, "speaker-named erased:78"],
        "never here": ["speaker-named ", ERASURES],
        "never here, came": ["speaker-named ", ERASURES, "identity-registered"],
        "never erased": ["speaker-named did:x", "speaker-named "],
    }
    rows = [
        (stream.encode(), kind, version, "did:y", account if has_account else None)
        for stream, events in said.items()
        for version, event in enumerate(events, 1)
        for kind, has_account, account in [event.partition(" ")]
    ]
    schema = "stream binary, type string, version long, identity string, owner_did string"
    found = erased_identities(said_last(about_names(spark.createDataFrame(rows, schema))))
    erased = {b"let go", b"of an erased account", b"never here"}
    assert {bytes(row.stream) for row in found.collect()} == erased
