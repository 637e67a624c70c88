"""Where the databases of one log are exported to, side by side in one place.

<place>/db-0, <place>/db-1, …    each an export of its own, with positions of its own
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_FOLDERS: Final = re.compile(r"db-(0|[1-9]\d{0,2})")


def folder_name(number: int) -> str:
    """The name of the folder of one database of several."""
    return f"db-{number}"


def folder_of_database(place: str, number: int) -> str:
    """The place within ``place``, a path or URI, where one database of several is exported to."""
    path, mark, query = place.partition("?")
    return f"{path.rstrip('/')}/{folder_name(number)}{mark}{query}"


def databases_among(names: Iterable[str]) -> int:
    """How many databases there are, by the highest number among names of folders."""
    found = [match for name in names if (match := _FOLDERS.fullmatch(name))]
    return max((int(match[1]) + 1 for match in found), default=0)
