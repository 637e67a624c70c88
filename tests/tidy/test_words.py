"""Rules of words: one word for one thing, the field's own; the glossary is in ARCHITECTURE.md."""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from collections import Counter

from tests.tidy.modules import ROOT, modules, text_files

INSTEAD_OF_WORDS = {
    "courier": "delivery worker",
    "heard": "received",
    "judge": "validator",
    "judgement": "validation",
    "nobody": "none, no owner, an unknown recipient",
    "objection": "rejection",
    "residency": "state cache",
    "roster": "membership",
    "somebody": "another client, another identity",
    "told": "reported, answered, sent",
    "trouble": "fault, or rejection",
    "verdict": "validation result",
    "whoever": "the caller, the sender, any client",
    "whomever": "the caller, the sender, any client",
}
"""Words that stand in no identifier and in no text; each with what to say."""

INSTEAD_OF_NAMES = {
    "Around": "Dependencies",
    "Asked": "Request",
    "Company": "CommitDelay",
    "Conversation": "ProtocolSession",
    "Line": "HostConnection, or what the line is of",
    "Moment": "DecisionContext",
    "Office": "DeliveryQueue",
    "Party": "Peer",
    "Objection": "Rejection",
    "Presence": "SessionRegistry",
    "Resident": "CachedIdentity",
    "Residents": "CachedIdentities",
    "Rounds": "DeliveryWorker",
    "OwnHost": "DedicatedHost",
    "Standing": "Authorization",
    "asked": "request, question",
    "comes_round": "is_due",
    "keep_house": "run_housekeeping",
    "office": "queue",
}
"""Names that no module defines or uses; each with what to say."""

INSTEAD_OF_PHRASES = {
    r"keeps? house": "housekeeping",
    r"hosts? of one\b(?! mediator)": "dedicated host",
    r"\bown_hosts?\b|\bOwnHost": "dedicated host",
    r"\b\w+Front\b": "…Endpoint",
    r"\bposte_resident_(?:identities|bytes)\b": "poste_cached_…",
    r"\bnormal places?\b": "normal slot",
    r"\bimport (\w+) as \1s\b": "two names for one thing",
}

HERE = ("tests/tidy/test_words.py",)
GLOSSARY = "ARCHITECTURE.md"
HISTORY = ("CHANGELOG.md",)
"""Says what was, in the words of then."""

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
TEXTS = (
    ".md", ".py", ".toml", ".yaml", ".yml", ".json", ".txt", ".service", ".conf", ".sh", ".mjs",
)  # fmt: skip


def _texts() -> list[str]:
    paths = [path for path in text_files() if path.endswith(TEXTS) or path == "Makefile"]
    return [path for path in paths if path not in HERE + HISTORY]


def _outside_of_the_glossary(path: str, text: str) -> str:
    return re.sub(r"(?s)## Glossary.*?(?=\n## |\Z)", "", text) if path == GLOSSARY else text


def test_retired_words_stand_nowhere() -> None:
    found: dict[str, Counter[str]] = {}
    for path in _texts():
        text = _outside_of_the_glossary(path, (ROOT / path).read_text("utf-8"))
        said = Counter[str]()
        lower = text.lower()
        if any(word in lower for word in INSTEAD_OF_WORDS):
            said.update(word for each in WORD.findall(text) if (word := _one(each.lower())))
        for pattern in INSTEAD_OF_PHRASES:
            said[pattern] += len(re.findall(pattern, text))
        if +said:
            found[path] = +said
    assert found == {}


def test_retired_names_name_nothing() -> None:
    found: dict[str, set[str]] = {}
    any_of_them = re.compile(rf"\b(?:{'|'.join(INSTEAD_OF_NAMES)})\b")
    for module in modules("actors", "eventstore", "http_edge", "projections", "tests"):
        if not any_of_them.search(module.text):
            continue
        names = {
            token.string
            for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string)
        }
        if used := {name for name in names if name in INSTEAD_OF_NAMES}:
            found[module.path] = used
    assert found == {}


def _one(word: str) -> str | None:
    """The retired word that this one is, in the singular; None for any other word."""
    for form in (word, word.removesuffix("s"), word.removesuffix("es")):
        if form in INSTEAD_OF_WORDS:
            return form
    return None


def test_the_glossary_explains_each_word_once_and_in_order() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    _, _, table = text.partition("| word | means |\n|---|---|\n")
    words = [row.split("|")[1].strip() for row in table.partition("\n\n")[0].splitlines()]
    assert len(words) > 50
    assert words == sorted(words, key=str.lower)
    each = Counter(word for entry in words for word in re.split(r", | \(", entry.rstrip(")")))
    assert [word for word, count in each.items() if count > 1] == []
