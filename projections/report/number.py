"""What a number of a report is: a table of bounded size, and how Spark makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from projections.report.facts import Facts


@dataclass(frozen=True)
class Number:
    """One table of numbers.

    ``columns`` says what each column holds, with its unit; ``order`` are the columns that rows
    are sorted by, ``-`` before a name for descending; ``people`` are the columns that name
    somebody, which pseudonyms replace.
    """

    name: str
    title: str
    columns: Mapping[str, str]
    make: Callable[[Facts], DataFrame]
    order: tuple[str, ...]
    people: tuple[str, ...] = ()
