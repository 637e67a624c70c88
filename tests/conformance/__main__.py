"""The matrix of conformance to DIDComm v2: ``python -m tests.conformance``, ``make conformance``.

Installs the libraries that a registry has, runs every test that is a witness from outside, and
prints one row for each source: the specification, published vectors, other projects' suites and
libraries.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Final

import pytest
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tests.conformance.foreign import IDENTUS, LIBRARIES, Library, install

_FILES: Final[Mapping[str, str]] = {
    "tests/unit/didcomm/test_jwe_vectors.py": "the specification's vectors, and SICPA's negatives",
    "tests/unit/didcomm/test_v2_dids.py": "did:key, did:peer 2 and 4; did-peer-2, did-peer-4",
    "tests/unit/didcomm/test_jwe.py": "JWE with askar and joserfc, mutations",
    "tests/edge/didcomm/test_newer_malformed.py": "SICPA's negatives, sent to a mediator",
    "tests/edge/didcomm/test_iohk_scenarios.py": "scenarios of the IOHK mediator suite",
}
_FOREIGN: Final = "tests/conformance"
_NOT_TO_BE_HAD: Final[Mapping[str, str]] = {
    "@credo-ts/didcomm 0.8": "no version with DIDComm v2 is in the registry (0.6.3 is of v1)",
}


class Outcomes:
    """Counts what became of the tests of each row; a plugin of pytest."""

    def __init__(self) -> None:
        self.rows: dict[str, Counter[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One part of a test is done."""
        if report.when == "call" or report.outcome != "passed":
            self.rows.setdefault(_row(report.nodeid), Counter())[report.outcome] += 1


def _row(nodeid: str) -> str:
    path, _, test = nodeid.partition("::")
    if path in _FILES:
        return _FILES[path]
    if "identus" in test:
        return IDENTUS.requirement
    chosen = test.partition("[")[2]
    named = [each for each in LIBRARIES if chosen.startswith((f"{each.name}-", f"{each.name}]"))]
    return max(named, key=lambda each: len(each.name)).requirement if named else path


def main() -> int:
    """Print the matrix; 1 if anything failed."""
    missing: dict[str, str] = dict(_NOT_TO_BE_HAD)
    for library in (*LIBRARIES, IDENTUS):
        if reason := install(library):
            missing[library.requirement] = reason
    outcomes = Outcomes()
    words = ["-q", "-p", "no:cacheprovider", *_FILES, _FOREIGN]
    status = pytest.main(words, plugins=[outcomes])
    table = Table("source", "passed", "failed", "not able", "remark", box=SIMPLE_HEAD)
    for row, counts in sorted(outcomes.rows.items()):
        remark = missing.get(row) or _remark(row)
        numbers = (str(counts[name]) for name in ("passed", "failed", "skipped"))
        table.add_row(row, *numbers, remark)
    for row in sorted(missing.keys() - outcomes.rows.keys()):
        table.add_row(row, "-", "-", "-", missing[row])
    Console(width=140, highlight=False).print(table)
    return int(status)


def _remark(row: str) -> str:
    found: Library | None = next((each for each in LIBRARIES if each.requirement == row), None)
    return "" if found is None else found.remark


if __name__ == "__main__":
    sys.exit(main())
