"""Say which rule a JSON text or a value breaks: ``<member>: <rule>``, never a value from it."""

from __future__ import annotations

import msgspec

from http_edge.crypto.strict_json import RULES, JsonRefused


def rule_of_text(error: JsonRefused) -> str:
    """The rule that a refused text breaks; a reason of orjson's own may quote the text."""
    return error.reason if error.reason in RULES else "is not JSON in UTF-8"


def rule_of(error: msgspec.ValidationError, root: str = "") -> str:
    """Msgspec's message, with the path of the member below ``root``."""
    rule, _, path = str(error).partition(" - at `$")
    member = root + path.rstrip("`")
    missing = rule.removeprefix("Object missing required field `")
    if missing != rule:
        member, rule = f"{member}.{missing.rstrip('`')}", "is missing"
    return f"{member}: {rule[0].lower()}{rule[1:]}".lstrip(".: ")
