"""Rules of texts: nothing in a file tells of the machine that it was written on."""

import re

from tests.tidy.modules import ROOT, text_files

PLACES = re.compile(r"/(home|Users)/\w|/root/|/work/")
INDEXES = re.compile(r"files\.pythonhosted|pypi\.org|index-url|artifactory", re.IGNORECASE)
BINARY = (".png", ".parquet", ".db", ".pyc", ".gz", ".ico", ".woff2")
HERE = "tests/tidy/test_texts.py"

TEXTS = {
    path: (ROOT / path).read_text("utf-8") for path in text_files() if not path.endswith(BINARY)
}


def _matching(pattern: re.Pattern[str]) -> dict[str, str]:
    found = {path: pattern.search(text) for path, text in TEXTS.items() if path != HERE}
    return {path: match[0] for path, match in found.items() if match}


def test_no_file_names_a_place_on_one_machine() -> None:
    assert _matching(PLACES) == {}


def test_no_file_names_a_package_index() -> None:
    assert _matching(INDEXES) == {}


def test_no_line_ends_in_blanks_and_every_text_in_one_newline() -> None:
    assert _matching(re.compile(r"[ \t]$|[^\n]\Z|\n\n\Z", re.MULTILINE)) == {}
