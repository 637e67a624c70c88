"""JSON that is changed with its structure in mind, and written as it should not be."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

LONG: Final = "9" * 400
ODD: Final[list[Any]] = [
    *(None, True, False, 0, -1, 1.5, -0.0, 1e300, 5e-324, 2**53, -(2**63), 2**64, 10**30),
    *("", "x", "\x00", "\ud800", "\U0001f600", "é" * 300, "a" * 5_000, "=", "AAAA", "did:key:z6Mk"),
    *([], {}, [[]], [None], {"": {}}, {"type": []}, [0] * 1_000, {"a": "\udfff"}),
]
_NAMES: Final = ["type", "", "@type", "@id", "~thread", "\ud83d", "__proto__", "x" * 300, "tags"]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    members: dict[Any, Any] = {}
    if isinstance(value, dict | list):
        members = value if isinstance(value, dict) else dict(enumerate(value[:50]))
    for name, member in members.items():
        yield (*path, name)
        yield from _places(member, (*path, name))


def changed(chance: random.Random, value: Any) -> Any:
    """A JSON value with one to three of its parts dropped, replaced, nested or doubled."""
    value = deepcopy(value)
    for _ in range(chance.randint(1, 3)):
        places = list(_places(value))
        if not places:
            return deepcopy(chance.choice(ODD))
        *way, last = chance.choice(places)
        inner = value
        for name in way:
            inner = inner[name]
        match chance.randrange(6):
            case 0:
                del inner[last]
            case 1:
                inner[last] = [inner[last]]
            case 2:
                nested: Any = inner[last]
                for _ in range(chance.choice([2, 30, 40])):
                    nested = {chance.choice(_NAMES): nested} if chance.random() < 0.5 else [nested]
                inner[last] = nested
            case 3 if isinstance(inner, dict):
                inner[chance.choice(_NAMES)] = deepcopy(inner[last])
            case 4 if isinstance(inner[last], str):
                inner[last] = _changed_text(chance, inner[last])
            case _:
                inner[last] = deepcopy(chance.choice(ODD))
    return value


def _changed_text(chance: random.Random, text: str) -> str:
    cut = chance.randrange(len(text) + 1)
    return text[:cut] + chance.choice(["", "=", "\x00", "-", "%", "\ud800", "A" * 99]) + text[cut:]


def written(chance: random.Random, value: Any) -> bytes:
    """The value as JSON of one of the odd kinds that writers make, or break."""
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5)
    body = text.encode("utf-8", "surrogatepass")
    match chance.randrange(28):
        case 0:
            return body[: chance.randrange(len(body) + 1)]
        case 1:
            return body.replace(b'":', b'":1,"', 1)
        case 2 if body.endswith(b"}"):
            return body[:-1] + b',"payload":1,"header":{}}'
        case 3:
            return body.replace(b"0", chance.choice([b"1e5", b"-0", b"1e999", LONG.encode()]), 1)
        case 4:
            return body.replace(b" ", b"\n\t ")
        case 5:
            start = chance.randrange(len(body) + 1)
            return body[:start] + chance.randbytes(3) + body[start + 2 :]
        case 6:
            return b'{"a":' * chance.choice([40, 5_000]) + body
        case _:
            return body
