"""Tables that are continued are those of the log whose export continues them, and of no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

import projections
from actors.core import commands as c
from eventstore.log.event_log import EventLog
from eventstore.parquet.files import open_place
from eventstore.stores.open_log import open_log
from projections.analysis.opening import NotOfThisExport
from projections.generations.generation import Generation
from projections.rebuild.rebuild import RebuildRefused, rebuild
from projections.spark.export import open_export
from projections.tables.agents import ACCOUNT_NAMES, INVITATIONS
from projections.tables.identities import IDENTITIES
from projections.tables.queues import QUEUES
from projections.tables.saved_events import SAVED_EVENTS
from projections.tables.seals import SEALS
from tests.export.leaving import BOUNDS, leave, played, prune
from tests.export.samples import export_all
from tests.histories import CROWD, History, contract, random_script
from tests.projections.exports import export_log, prefix_of, read_tables, take_out_erased
from tests.projections.folding import Rows, fold
from tests.projections.test_rebuild import come_back, erase, naming, seal_before

pytestmark = pytest.mark.spark
KEY: Final = bytes(range(32))
PEER: Final = "did:example:peer"
SOME: Final = (IDENTITIES, ACCOUNT_NAMES, QUEUES, SAVED_EVENTS, SEALS)
"""The tables of these tests: what a rebuild reads of the earlier ones, and two with peers."""


@pytest.fixture(autouse=True)
def _some_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebuild these tables alone, in buckets that nothing else changes."""
    monkeypatch.setattr("projections.rebuild.rebuild.PROJECTIONS", SOME)
    monkeypatch.setattr("projections.rebuild.writing.EVENTS_OF_BUCKET", 8)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as opened:
        yield opened


def later(log: EventLog) -> History:
    """What others do after all that is in a log; nothing of it is of the first identities."""
    start_ms = 1_700_000_000_000 + log.position() * 1_000_000
    crowd = CROWD._replace(name=f"{log.position()}.", identities=CROWD.agents)
    return History(log, crowd=crowd, start_ms=start_ms, after=log.position())


def rebuilt(spark: SparkSession, folder: Path, target: str, key: bytes | None = None) -> Generation:
    """Continue the tables in a folder, or begin them, from the export beside them."""
    export = open_export(str(folder / "export"), key=key)
    return rebuild(spark, export, str(folder / target), incremental=True)


def test_tables_of_what_the_log_has_lost_are_not_continued(
    spark: SparkSession, log: EventLog, tmp_path: Path
) -> None:
    """A restored log goes on past the position of the tables, and is exported elsewhere."""
    History(log).play(random_script(2, 200))
    export_log(log, tmp_path / "export", rows_max=100)
    made = rebuilt(spark, tmp_path, "tables")
    before, target = read_tables(tmp_path / "tables", made), str(tmp_path / "tables")
    kept = seal_before(log, made.position // 2)
    with closing(prefix_of(log, kept, tmp_path / "restored.db")) as restored:
        later(restored).play(random_script(3, 300))
        assert restored.position() > made.position
        export_log(restored, tmp_path / "other", rows_max=100)
        other = open_export(str(tmp_path / "other"))
        for as_of in (None, made.position):
            with pytest.raises(RebuildRefused, match=f"{made.position:,} .* another history"):
                rebuild(spark, other, target, as_of=as_of, incremental=True)
        with pytest.raises(NotOfThisExport, match="another history"):
            projections.open(str(tmp_path / "other"), target)
        assert read_tables(tmp_path / "tables", made) == before
        # Up to the position that both have, they are of the same log.
        early = str(tmp_path / "early")
        rebuild(spark, open_export(str(tmp_path / "export")), early, as_of=kept)
        after = rebuild(spark, other, early, incremental=True)
        assert some(read_tables(tmp_path / "early", after)) == some(fold(restored))
        with projections.open(str(tmp_path / "other"), early) as opened:
            assert opened.generation == after


def some(rows: dict[str, Rows]) -> dict[str, Rows]:
    return {each.name: rows.get(each.name, set()) for each in SOME}


def test_tables_are_continued_and_opened_although_seals_before_them_were_removed(
    spark: SparkSession, log: EventLog, tmp_path: Path
) -> None:
    history, place = played(log, 400, seed=8), open_place(str(tmp_path / "export"))
    until_ms = history.now_ms - 100_000
    export_all(log, place, BOUNDS)
    early = seal_before(log, 150)
    rebuild(spark, open_export(str(place.root)), str(tmp_path / "early"), as_of=early)
    first = rebuilt(spark, tmp_path, "tables")
    history.play(random_script(9, 60))
    expected = some(fold(log))
    leave(log, place)
    assert prune(log, place, until_ms=until_ms) > 100
    assert 0 < open_export(str(place.root)).pruned_up_to[0] < first.position
    second = rebuilt(spark, tmp_path, "tables")
    assert (second.generation, read_tables(tmp_path / "tables", second)) == (2, expected)
    assert prune(log, place, until_ms=history.now_ms) > 0
    assert open_export(str(place.root)).pruned_up_to[0] > first.position
    # The seals that are left up to the earlier position were not the newest ones there.
    for name, number, at in (("early", 1, early), ("tables", 1, first.position)):
        with projections.open(str(place.root), str(tmp_path / name), generation=number) as opened:
            assert opened.generation is not None
            assert opened.generation.position == at


def test_continued_tables_do_not_name_who_first_registered_since_and_was_erased(
    spark: SparkSession, log: EventLog, tmp_path: Path
) -> None:
    """Rows of others had the name first, and they keep it in the log as long as they live."""
    gone, history = "did:example:gone", History(log)
    history.play(random_script(32, 250))
    come_back(history, PEER)
    allowed = contract(PEER, gone, history.now_ms // 1000 + 9_000)
    history._ask(PEER, PEER, c.SaveContract(allowed))
    history._ask(gone, PEER, c.QueueMessage(gone, b"waits"))
    saved = c.NewSavedEvent(gone, PEER, None, 1.0, "saved", [])
    history._ask(PEER, PEER, c.SaveEvents([saved]))
    history.commit()
    export_log(log, tmp_path / "export")
    before = read_tables(tmp_path / "tables", rebuilt(spark, tmp_path, "tables"))
    assert naming(before, gone) == {"queues", "saved_events"}
    others = later(log)
    come_back(others, gone)
    erase(others, gone)
    export_log(log, tmp_path / "export")
    assert take_out_erased(log, tmp_path / "export").names > 0
    made = rebuilt(spark, tmp_path, "tables")
    tables = read_tables(tmp_path / "tables", made)
    assert (made.generation, naming(tables, gone)) == (2, set())
    assert tables == read_tables(tmp_path / "whole", rebuilt(spark, tmp_path, "whole"))


def test_tables_do_not_name_the_former_life_of_who_came_back_before_its_names_left(
    spark: SparkSession, log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("projections.rebuild.rebuild.PROJECTIONS", (*SOME, INVITATIONS))
    gone, history = CROWD.identities[0], History(log)
    history.play(random_script(32, 120))
    come_back(history, gone)
    history._ask(gone, "invitation:used", c.UseInvitation(gone))
    history.commit()
    export_log(log, tmp_path / "export")
    before = read_tables(tmp_path / "tables", rebuilt(spark, tmp_path, "tables"))
    assert "invitations" in naming(before, gone)
    others = later(log)
    erase(others, gone)
    come_back(others, gone)
    export_log(log, tmp_path / "export")
    assert take_out_erased(log, tmp_path / "export").names > 10
    tables = read_tables(tmp_path / "tables", rebuilt(spark, tmp_path, "tables"))
    assert "identities" in naming(tables, gone)
    assert "invitations" not in naming(tables, gone)
    assert tables == read_tables(tmp_path / "whole", rebuilt(spark, tmp_path, "whole"))


def test_with_pseudonyms_an_erased_identity_is_one_row_wherever_its_name_has_left(
    spark: SparkSession, log: EventLog, tmp_path: Path
) -> None:
    gone = CROWD.identities[0]
    History(log).play(random_script(32, 120))
    export_log(log, tmp_path / "export")
    rebuilt(spark, tmp_path, "tables", KEY)
    for number, act in enumerate((erase, come_back)):
        act(later(log), gone)
        export_log(log, tmp_path / "export")
        if act is erase:
            assert take_out_erased(log, tmp_path / "export").names > 10
        tables = read_tables(tmp_path / "tables", rebuilt(spark, tmp_path, "tables", KEY))
        whole = f"whole-{number}"
        assert tables == read_tables(tmp_path / whole, rebuilt(spark, tmp_path, whole, KEY))
        streams = Counter(row[0] for row in tables["identities"])
        assert {*streams.values()} == {1}
