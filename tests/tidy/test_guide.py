"""The guide shows what its pages say."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from tests.tidy.modules import ROOT

markdown = pytest.importorskip("markdown", reason="the guide is not installed (make setup)")
DEPLOY = ROOT / "deploy"
PAGES = sorted(
    [*ROOT.glob("*.md"), *DEPLOY.glob("*.md")]
    + [path for folder in ("runbooks", "docs/pages") for path in (DEPLOY / folder).rglob("*.md")]
)
FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
MARKER = re.compile(r"^(-|\d+\.) ", re.MULTILINE)
LIST = re.compile(r'<(ul|ol|/ul|/ol|li)(?: start="(\d+)")?>')


def _extensions() -> list[str]:
    """The extensions of Markdown that the guide is built with, but for the one that reads files."""
    listed = yaml.safe_load((DEPLOY / "docs/mkdocs.yml").read_text())["markdown_extensions"]
    names = [next(iter(each)) if isinstance(each, dict) else each for each in listed]
    return [name for name in names if name != "pymdownx.snippets"]


def _shown_markers(html: str) -> Iterator[str]:
    """What stands before each item of the lists of a page: a dash, or its number and a dot."""
    numbers: list[int | None] = []
    for tag, start in LIST.findall(html):
        if tag == "li":
            number = numbers[-1]
            yield "-" if number is None else f"{number}."
            numbers[-1] = None if number is None else number + 1
        elif tag.startswith("/"):
            numbers.pop()
        else:
            numbers.append(int(start or 1) if tag == "ol" else None)


@pytest.mark.parametrize("name", [str(path.relative_to(ROOT)) for path in PAGES])
def test_each_item_of_a_list_is_one_in_the_guide_and_has_its_number(name: str) -> None:
    text = FENCED.sub("", (ROOT / name).read_text("utf-8"))
    html = markdown.markdown((ROOT / name).read_text("utf-8"), extensions=_extensions())
    shown = list(_shown_markers(re.sub(r"<(pre|code)\b.*?</\1>", "", html, flags=re.DOTALL)))
    assert shown == MARKER.findall(text)
