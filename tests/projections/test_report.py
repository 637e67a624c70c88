"""Reports: numbers that plain counting confirms, and a page that is safe to open."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import MAXYEAR, UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from eventstore.log.pseudonyms import pseudonym_of
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.stores.open_log import open_log
from projections.program import projections
from projections.report import units
from projections.report.drawing import NARROW, WIDE, Size
from projections.report.numbers import FOLDER, NUMBERS
from projections.report.page import PLOTS, Note, page, table_of
from projections.report.plots import time_locator
from projections.report.program import tenants_in
from projections.report.writing import PAGE, write_report
from projections.spark.export import open_export
from projections.views.span import DAY_MS, LATEST_MS, NoSuchTime, Span
from tests import histories
from tests.projections.counting import Counted
from tests.projections.exports import export_log
from tests.projections.logs import FORMULA, HOSTILE, LABEL, PAYLOAD, fill

KEY: Final = bytes(range(40))
VOID: Final = {"meta", "br", "hr", "img", "input", "link"}
"""Elements of HTML that have no end."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
        fill(log)
        export_log(log, folder / "export", rows_max=400)
    return folder


@pytest.fixture(scope="module")
def span(folder: Path) -> Span:
    """A range that begins and ends in the midst of the lives of messages."""
    with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
        times = Counted(log, Span.over(0, 2**45, 2**45)).times_ms()
    since_ms, until_ms = times[len(times) // 5], times[len(times) * 9 // 10]
    return Span.over(since_ms, until_ms, until_ms)


@pytest.fixture(scope="module")
def report(spark: SparkSession, folder: Path, span: Span) -> Path:
    export, to = open_export(str(folder / "export")), folder / "to"
    write_report(spark, export, str(to), since_ms=span.since_ms, until_ms=span.until_ms)
    return to


class Page(HTMLParser):
    """Elements and texts of a page; refuses elements that do not end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def rows(report: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(report / FOLDER / f"{name}.parquet").to_pylist()
    return found


@pytest.mark.spark
def test_numbers_are_what_plain_counting_finds(report: Path, folder: Path, span: Span) -> None:
    with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
        counted = Counted(log, span)
    cut = [life for life in counted.lives.values() if life.waits(span.since_ms)]
    assert cut
    assert any(life.waits(span.until_ms) for life in counted.lives.values())
    for name in (
        *("volumes", "queue_depth", "service_level", "waits", "wait_classes", "growth"),
        *("refusals_over_time", "redeliveries", "redelivered"),
    ):
        expected = getattr(counted, name)()
        assert expected, name
        assert approximately(rows(report, name)) == approximately(expected), name
    assert rows(report, "senders") == counted.largest("sender_did")
    assert rows(report, "recipients") == counted.largest("identity")
    assert {(r["sender_did"], r["refusals"]) for r in rows(report, "refused_senders")} == {
        (HOSTILE, 7)
    }
    kinds = {(row["command"], row["refusals"]) for row in rows(report, "refusals_by_kind")}
    assert {(FORMULA, 7), ("", 2)} <= kinds


def approximately(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: round(v, 9) if isinstance(v, float) else v for name, v in row.items()}
        for row in found
    ]


@pytest.mark.spark
def test_every_number_is_written_with_what_its_columns_hold(report: Path) -> None:
    for number in NUMBERS:
        table = pq.read_table(report / FOLDER / f"{number.name}.parquet")
        assert table.schema.names == list(number.view.columns)
        assert [f.metadata[b"about"].decode() for f in table.schema] == [
            *number.view.columns.values()
        ]
        text = pyarrow.csv.read_csv(report / FOLDER / f"{number.name}.csv")
        assert (text.num_rows, text.schema.names) == (table.num_rows, table.schema.names)


@pytest.mark.spark
def test_no_spreadsheet_runs_what_strangers_wrote(report: Path) -> None:
    for path in (report / FOLDER).glob("*.csv"):
        assert not re.search(r'(^|,)"?[=+@]', path.read_text(), re.MULTILINE), path.name
    assert f"'{FORMULA}" in (report / FOLDER / "refusals_by_kind.csv").read_text()


@pytest.mark.spark
def test_the_page_needs_nothing_and_runs_nothing(report: Path) -> None:
    text = (report / PAGE).read_text()
    found = Page(text)
    assert not found.tags & {"script", "img", "link", "iframe", "object", "embed", "form", "image"}
    for name, value in found.attributes:
        assert not name.startswith("on")
        assert name not in {"src", "action", "srcset", "data"}
        assert name != "href" or value.startswith("#")
        assert "url(" not in value or re.fullmatch(r"url\(#[\w-]+\)", value)
    assert "@import" not in text
    assert not [value for name, value in found.attributes if "http" in value]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert ("content", policy) in found.attributes
    identifiers = [value for name, value in found.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    referenced = {value[1:] for name, value in found.attributes if name == "href"}
    assert referenced <= set(identifiers)


@pytest.mark.spark
def test_what_strangers_chose_is_text_of_the_page(report: Path) -> None:
    found = Page((report / PAGE).read_text())
    assert HOSTILE in found.texts
    assert FORMULA in found.texts
    # Agents without a tenant are counted by what they call themselves.
    assert units.printable(LABEL) in found.texts


@pytest.mark.spark
def test_nothing_that_is_written_has_content_of_messages(report: Path) -> None:
    for path in report.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            if path.suffix == ".parquet":
                content = repr(pq.read_table(path).to_pylist()).encode()
            assert PAYLOAD not in content
            assert PAYLOAD.hex().encode() not in content


@pytest.mark.spark
def test_the_page_says_which_export_it_is_of(report: Path, folder: Path, span: Span) -> None:
    texts = Page((report / PAGE).read_text()).texts
    head = open_export(str(folder / "export")).head
    assert head.mediator_did in texts
    assert any("verified" in text and head.public_key in text for text in texts)
    for at_ms in (span.since_ms, span.until_ms):
        assert units.time(units.utc(at_ms)) in texts


@pytest.mark.spark
def test_with_a_key_no_identity_is_named(spark: SparkSession, folder: Path, span: Span) -> None:
    to = folder / "hidden"
    export = open_export(str(folder / "export"))
    write_report(spark, export, str(to), since_ms=span.since_ms, until_ms=span.until_ms, key=KEY)
    named = [*histories.IDENTITIES, *histories.AGENTS, HOSTILE]
    assert not set(named) & set(Page((to / PAGE).read_text()).texts)
    everything = "".join(path.read_text() for path in (to / FOLDER).glob("*.csv"))
    assert "did:" not in everything
    assert pseudonym_of(HOSTILE, KEY) in {row["identity"] for row in rows(to, "recipients")}


def test_where_nothing_happened_the_page_says_so() -> None:
    text = page(
        Span.over(0, DAY_MS, DAY_MS), {number.name: [] for number in NUMBERS}, [Note("Log", "<b>")]
    )
    found = Page(text)
    assert any("there is nothing to show" in text for text in found.texts)
    assert not found.tags & {"svg", "table", "b"}


@pytest.mark.spark
def test_a_time_that_ends_before_it_begins_is_refused(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    export = open_export(str(folder / "export"))
    with pytest.raises(NoSuchTime, match="is empty"):
        write_report(spark, export, str(tmp_path / "to"), since_ms=5, until_ms=5)
    assert not (tmp_path / "to").exists()


@pytest.mark.spark
def test_an_export_without_events_gives_a_page(spark: SparkSession, tmp_path: Path) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        export_log(log, tmp_path / "export")
    report = write_report(spark, open_export(str(tmp_path / "export")), str(tmp_path / "to"))
    assert (report.since, report.until) == ("", "")
    found = Page((tmp_path / "to" / PAGE).read_text())
    assert "The export has no events yet." in found.texts
    assert "svg" not in found.tags
    to = tmp_path / "to"
    over_time = {"growth", "acceptance"}
    assert {len(rows(to, n.name)) for n in NUMBERS if n.name not in over_time} == {0}
    assert {row["total"] for row in rows(to, "growth")} == {0}


def test_a_manifest_that_its_key_did_not_sign_is_named(folder: Path, tmp_path: Path) -> None:
    manifest = max((folder / "export" / "manifests").iterdir())
    content = manifest.read_text()
    signature = re.search(r'"signature":"(\w+)"', content)
    assert signature is not None
    try:
        manifest.write_text(content.replace(signature[1], signature[1][::-1]))
        with pytest.raises(ExportDamaged, match=manifest.name) as caught:
            open_export(str(folder / "export"))
        assert caught.value.damage is Damage.BAD_SIGNATURE
        options = ["report", "--from", str(folder / "export"), "--to", str(tmp_path / "to")]
        done = CliRunner().invoke(projections, options)
        assert (done.exit_code, manifest.name in done.output) == (4, True)
    finally:
        manifest.write_text(content)


def _garbled(file: Path) -> None:
    file.write_bytes(b"?" * file.stat().st_size)


def _page_lost(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(b"\xff" * (len(content) // 2) + content[len(content) // 2 :])


@pytest.mark.parametrize("change", [Path.unlink, _garbled, _page_lost])
def test_a_file_whose_hash_is_not_compared_and_that_cannot_be_read_is_no_fault_of_the_program(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    export = tmp_path / "export"
    shutil.copytree(folder / "export", export)

    @contextmanager
    def changed_meanwhile(*_: object, **__: object) -> Iterator[None]:
        change(min((export / "events").rglob("*.parquet")))
        yield

    monkeypatch.setattr("projections.report.program.open_session", changed_meanwhile)
    options = ["report", "--from", str(export), "--to", str(tmp_path / "to"), "--skip-hashes"]
    done = CliRunner().invoke(projections, options)
    assert (done.exit_code, f"be read or written now: local:{export}" in done.stderr) == (3, True)


def test_a_time_that_is_none_is_a_usage_error(folder: Path, tmp_path: Path) -> None:
    options = ["report", "--from", str(folder / "export"), "--to", str(tmp_path / "to")]
    for text in ("17", "yesterday"):
        done = CliRunner().invoke(projections, [*options, "--since", text])
        assert (done.exit_code, text in done.output) == (2, True)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("text", ["nan", "inf", "1e300", "-1", "soon"])
def test_a_wait_that_is_none_is_a_usage_error(folder: Path, tmp_path: Path, text: str) -> None:
    options = ["report", "--from", str(folder / "export"), "--to", str(tmp_path / "to")]
    done = CliRunner().invoke(projections, [*options, f"--within-s={text}"])
    assert (done.exit_code, f"'{text}' is not a number of seconds" in done.output) == (2, True)


def test_tenants_are_read_from_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "tenants.csv"
    file.write_text("did:x:a,Acme\ndid:x:b,Beta\n", encoding="utf-8-sig")
    assert tenants_in(str(file)) == {"did:x:a": "Acme", "did:x:b": "Beta"}


def test_the_longest_time_can_be_drawn() -> None:
    span = Span.over(0, LATEST_MS, LATEST_MS)
    assert units.utc(span.edges_ms[-1]).year < MAXYEAR
    assert len(time_locator(WIDE).tick_values(*map(units.utc, (0, span.edges_ms[-1])))) <= 12


@given(size=st.sampled_from([NARROW, WIDE]), length_s=st.floats(1, 9).map(lambda x: 10**x))
@example(size=NARROW, length_s=150.5)
@example(size=NARROW, length_s=2.5 * 3_600)
def test_a_range_of_any_length_has_few_times_on_its_axis(size: Size, length_s: float) -> None:
    since = datetime(2023, 11, 15, 3, 7, 9, tzinfo=UTC)
    until = since + timedelta(seconds=length_s)
    assert 1 <= len(time_locator(size).tick_values(since, until)) <= 12


def test_numbers_are_written_as_people_read_them() -> None:
    assert [units.duration(s) for s in (None, 0.0042, 1.5, 300, 7_300, 400_000)] == [
        units.DASH, "4.2\u00a0ms", "1.5\u00a0s", "5\u00a0min", "2.03\u00a0h", "4.63\u00a0d"
    ]  # fmt: skip
    assert [units.size(n) for n in (0, 900, 2_048, 5 * 2**30)] == [
        "0\u00a0bytes", "900\u00a0bytes", "2.0\u00a0KiB", "5.0\u00a0GiB"
    ]  # fmt: skip
    assert [units.short_count(n) for n in (0, 999, 1_500, 2_000_000)] == ["0", "999", "1.5k", "2M"]
    assert units.time(datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2030-01-02 03:04:05"
    lengths = [600_000, 3_600_000, DAY_MS, 14 * DAY_MS]
    assert [units.bin_name(ms) for ms in lengths] == ["10 minutes", "hour", "day", "14 days"]


@settings(max_examples=20, deadline=None)
@given(st.text(max_size=40))
@example("\0 \x1b[31m \uffff \u202e \ue000 \r\n")
def test_a_name_of_any_characters_is_drawn(label: str) -> None:
    rows = [{"tenant": label, "identities": 1, "messages": 1, "bytes": 1}]
    svg = PLOTS["tenants"].svg({"tenant_volumes": rows}, Span.over(0, DAY_MS, DAY_MS))
    (shown,) = units.short_names([label]).values()
    assert " ".join(escape(shown).split()) in svg
    (cells,) = table_of("tenant_volumes", rows).rows
    assert cells[0].text.isprintable()


@given(st.sets(st.text(st.sampled_from("ab:.…\0\\x"), max_size=60), max_size=12))
@example({f"did:key:z6Mk{'x' * 30}{n}" for n in range(5)})
@example({f"did:peer:2.Ez6LS{n}{'x' * 60}" for n in range(5)})
def test_short_names_differ_where_names_do(names: set[str]) -> None:
    found = units.short_names(sorted(names))
    assert found.keys() == names
    assert len(set(found.values())) == len(names)
    assert all(len(short) <= 40 for short in found.values())


def test_a_short_name_says_method_and_end_of_a_did() -> None:
    alice, bob = f"did:key:z6Mk{'a' * 36}lice", f"did:key:z6Mk{'b' * 37}bob"
    assert units.short_names([alice, bob, "did:x:y"]) == {
        alice: "did:key:…aaaalice",
        bob: "did:key:…bbbbbbob",
        "did:x:y": "did:x:y",
    }


@pytest.mark.spark
def test_a_bin_that_the_export_does_not_have_all_of_is_marked(report: Path) -> None:
    last = rows(report, "volumes")[-1]
    assert not last["is_complete"]
    assert "not complete" in " ".join(Page((report / PAGE).read_text()).texts)


@pytest.mark.spark
@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium on the path")
@pytest.mark.parametrize("width", [1_280, 390])
def test_nothing_of_the_page_is_wider_than_a_window(
    report: Path, tmp_path: Path, width: int
) -> None:
    """The page runs nothing, so another one that has it in a frame looks how wide it becomes."""
    outside = tmp_path / "outside.html"
    outside.write_text(f"""<!doctype html><body>
        <iframe src="{(report / PAGE).as_uri()}" style="width:{width}px;height:900px;border:0">
        </iframe><script>
        onload = () => {{
            const shown = document.querySelector("iframe").contentDocument;
            const cards = [...shown.querySelectorAll(".card, .scroll, svg")];
            const widest = Math.max(...cards.map(each => each.getBoundingClientRect().right));
            document.title = shown.documentElement.scrollWidth + " " + Math.ceil(widest);
        }};
        </script></body>""")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    found = subprocess.run(
        ["chromium", *options, profile, "--allow-file-access-from-files", outside.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    said = re.search(r"<title>(\d+) (\d+)</title>", found)
    assert said is not None, found[:500]
    assert int(said[1]) <= width
    assert int(said[2]) <= width
