"""How soon all agents are served again after a fault of a cluster, and that nothing is lost.

The faults are those of ``tests.crash.cluster_under_faults``: agents of both protocols write all
the time, and afterwards everything is fetched and held against what they were answered.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from tests.bench.report import Report, report, timed
from tests.crash.cluster_faults import Fault
from tests.crash.cluster_under_faults import run as run_faults


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Which faults, in this order."""

    faults: tuple[Fault, ...]


def plan(*, quick: bool) -> Plan:
    """Every fault once, or one that shows whether all of it works."""
    if quick:
        return Plan(faults=(Fault.HOST,))
    return Plan(faults=tuple(fault for fault in Fault if fault is not Fault.EVERYTHING))


async def run(wanted: Plan, seed: int) -> Report:
    """Kill, pause and cut off one part after the other, at last everything but the database.

    Raises:
        RuntimeError: a promise was broken.
        AssertionError, TimeoutError: something did not start, or an agent was not served again.
    """
    with tempfile.TemporaryDirectory(prefix="poste-faults-") as directory:
        found = await run_faults(Path(directory), wanted.faults, seed)
    if not found.is_clean:
        raise RuntimeError(str(found))
    lines = [
        timed(
            one.fault.value,
            1,
            one.served_s,
            served_again_s=one.served_s,
            whole_again_s=one.mended_s,
        )
        for one in found.faulted
    ]
    return report(wanted, lines, commands=str(found.commands), wallets=str(found.wallets))
