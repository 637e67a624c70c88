"""Rules of documents: what they name exists, what they show runs."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from importlib.util import find_spec

import click
import pytest

from http_edge.cli.main import poste
from http_edge.didcomm.rejections import RejectionReason
from tests.model.test_sabotage import IN_THE_CORE, IN_THE_HOST
from tests.tidy.modules import ROOT

PROMISES = "deploy/docs/pages/internals/promises.md"
DICTIONARY = "deploy/docs/pages/reference/dictionary.md"
DIDCOMM = "deploy/docs/pages/reference/didcomm.md"
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "THREAT_MODEL.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "deploy/docs/pages").rglob("*.md")),
)
README_LINES_MAX = 150
THREATS_MIN = 200
SENTENCE_CHARS_MIN = 40
"""Shorter ones may well be said twice."""
TEXTS = {name: (ROOT / name).read_text("utf-8") for name in DOCUMENTS}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
PATH = re.compile(
    r"`((?:actors|eventstore|http_edge|projections|tests|deploy)/[\w/.-]+|\.ci/\w+)(?:::\w+)?`"
)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")
COMMAND = re.compile(r"(?:\.venv/bin/|`)(poste(?: [^`\n>]*|(?![\w-])))")
PLACES = {
    "URL": "http://127.0.0.1:1",
    **dict.fromkeys(("FILE", "OLD", "NEW"), str(ROOT / "README.md")),
    "DID": "did:web:alice.example",
    "KEY": "z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK",
}
"""What stands in examples for something of the reader's own."""
CODES = {
    "http_edge/didcomm/composition.py": re.compile(r'HTTPStatus\.\w+, "([\w-]+)"'),
    "http_edge/didcomm/protocols/pickup_1.py": re.compile(r'_problem\(\s*"(\w+)"'),
}
"""How these modules write the codes that they answer with and no enumeration has."""
THREAT = re.compile(r"^- \*\*([A-Z])(\d+) (?:.|\n(?=  ))+", re.MULTILINE)
"""A threat with what stops it, and its tests; those with an O are open."""


def _has_test(path: str, test: str) -> bool:
    defined = re.compile(rf"^ *(?:async )?def {test}\(", re.MULTILINE)
    return (ROOT / path).exists() and bool(defined.search((ROOT / path).read_text("utf-8")))


def _rows(text: str, *, with_a_column: str) -> list[str]:
    """The rows of every table whose heading has this column."""
    rows: list[str] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif with_a_column in cells:
            inside = True
        elif inside and not set(line) <= set("|-"):
            rows.append(line)
    return rows


def test_every_test_that_is_named_exists() -> None:
    named = {found for text in TEXTS.values() for found in TEST.findall(text)}
    assert [f"{path}::{test}" for path, test in named if not _has_test(path, test)] == []


@pytest.mark.parametrize(
    ("name", "rows_min"),
    [("README.md", 5), (PROMISES, 15)],
    ids=["five", "promises"],
)
def test_every_promise_has_a_test(name: str, rows_min: int) -> None:
    rows = _rows(TEXTS[name], with_a_column="test")
    assert len(rows) >= rows_min
    assert [row for row in rows if not TEST.search(row)] == []


def test_every_threat_names_the_file_that_stops_it_and_has_a_test() -> None:
    found = THREAT.finditer(TEXTS["THREAT_MODEL.md"])
    threats = [threat.group() for threat in found if threat[1] != "O"]
    assert len(threats) >= THREATS_MIN
    parts = [re.split(r"\n  Tests?:\s", threat) for threat in threats]
    assert [part for part in parts if len(part) != 2 or not PATH.search(part[0])] == []
    assert [tests for _, tests in parts if not TEST.search(tests)] == []


def test_threats_are_numbered_without_a_gap() -> None:
    numbers: dict[str, list[int]] = {}
    for letter, number in THREAT.findall(TEXTS["THREAT_MODEL.md"]):
        numbers.setdefault(letter, []).append(int(number))
    assert {
        letter: found
        for letter, found in numbers.items()
        if found != list(range(1, len(found) + 1))
    } == {}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_file_that_is_named_or_linked_exists(name: str) -> None:
    here = (ROOT / name).parent
    # Pages that stand elsewhere in the repository have an address of their own in the guide; the
    # build of the guide (make docs) refuses a link that leads nowhere.
    in_the_guide = name.startswith("deploy/docs/")
    places = [ROOT / path for path in PATH.findall(TEXTS[name])]
    places += [here / path for path in LINK.findall(TEXTS[name]) if not in_the_guide]
    assert [str(path) for path in places if not path.exists()] == []


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != DICTIONARY])
def test_no_sentence_of_a_document_is_there_twice(name: str) -> None:
    """Two versions of a paragraph that were merged leave both."""
    prose = re.sub(r"(?ms)^```.*?^```$|^\|.*?$|`tests/\S+::\w+`", "", TEXTS[name])
    paragraphs = re.split(r"\n\s*\n|\n *- ", prose)
    sentences = Counter(
        " ".join(sentence.split())
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=[.!?])\s", paragraph)
        if len(sentence) >= SENTENCE_CHARS_MIN
    )
    assert [sentence for sentence, times in sentences.items() if times > 1] == []


def test_the_readme_is_short() -> None:
    assert len(TEXTS["README.md"].splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_command_that_is_shown_is_understood(name: str) -> None:
    for line in COMMAND.findall(TEXTS[name]):
        _, *words = [PLACES.get(word, word) for word in shlex.split(line, comments=True)]
        command: click.Command = poste
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(click.Context(command), words[0])
            assert found is not None, line
            command, words = found, words[1:]
        command.make_context(command.name, words)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_nothing_of_ours_is_installed_by_a_name_that_no_index_has_from_us(name: str) -> None:
    """Anyone may register the name there, and have it installed here."""
    assert re.findall(r"install [^`\n]*\bposte-\w+", TEXTS[name]) == []


def test_the_number_of_sabotages_is_the_one_that_is_written() -> None:
    counts = [re.findall(r"(\d+)\s+(?:ways|sabotages)", text) for text in TEXTS.values()]
    assert {int(number) for numbers in counts for number in numbers} == {
        len(IN_THE_CORE) + len(IN_THE_HOST)
    }


@pytest.mark.skipif(find_spec("pyspark") is None, reason="tables are declared with Spark")
def test_the_data_dictionary_says_what_is_declared() -> None:
    # Imported here, so that the other rules are kept where Spark is not installed.
    from projections.analysis.dictionary import dictionary  # noqa: PLC0415
    from projections.tables import PROJECTIONS  # noqa: PLC0415

    assert TEXTS[DICTIONARY] == dictionary()
    counts = [re.findall(r"makes (\d+)\s+tables", text) for text in TEXTS.values()]
    assert {int(number) for numbers in counts for number in numbers} == {len(PROJECTIONS)}


def test_every_code_that_a_message_of_didcomm_is_refused_with_is_in_the_reference() -> None:
    codes = {reason.value for reason in RejectionReason}
    for path, code in CODES.items():
        found = code.findall((ROOT / path).read_text("utf-8"))
        assert len(found) > 1, path
        codes |= set(found)
    assert [code for code in sorted(codes) if f"`{code}`" not in TEXTS[DIDCOMM]] == []
