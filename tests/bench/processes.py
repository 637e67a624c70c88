"""CPU time and memory of processes, from /proc (Linux)."""

from __future__ import annotations

import os
import resource
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_PARENT, _TIMES = 1, slice(11, 15)
"""Fields of /proc/<pid>/stat after the command's name; times: utime, stime, cutime, cstime."""
_ESTABLISHED: Final = "01"
"""The state of a connection in /proc/net/tcp."""
_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ProcessTree:
    """A process and its descendants as they are at each call."""

    root: int

    def pids(self) -> list[int]:
        """The root and all its descendants."""
        children: dict[int, list[int]] = {}
        for pid, fields in _processes():
            children.setdefault(int(fields[_PARENT]), []).append(pid)
        found, waiting = [], [self.root]
        while waiting:
            pid = waiting.pop()
            found.append(pid)
            waiting += children.get(pid, [])
        return found

    def cpu_s(self) -> float:
        """CPU seconds so far, those of children that ended and were waited for included."""
        wanted = set(self.pids())
        ticks = sum(sum(map(int, fields[_TIMES])) for pid, fields in _processes() if pid in wanted)
        return ticks / _TICKS_PER_S

    def resident_bytes(self) -> int:
        """What is in RAM of each process, so pages that they share count more than once.

        It costs nothing to ask; for ``memory_bytes`` the system looks at every page, which takes
        tens of milliseconds for a process of a gigabyte, in which that one gets no new ones.
        """
        return sum(map(_resident_bytes, self.pids()))

    def memory_bytes(self) -> int:
        """Proportional set size: pages that processes share are counted once in all."""
        return sum(_rolled_up_bytes(pid, "Pss:") for pid in self.pids())

    def own_memory_bytes(self) -> int:
        """The part of it that is no page of a file: what grows with what a program holds.

        The share of a file's pages changes whenever another program starts to use it.
        """
        return sum(
            _rolled_up_bytes(pid, "Pss_Anon:") + _rolled_up_bytes(pid, "Pss_Shmem:")
            for pid in self.pids()
        )


def cpu_s(pids: Collection[int]) -> float:
    """CPU seconds so far of these processes themselves, of those of their threads that live.

    By the scheduler's own count, whose unit is not the tick of a hundredth of a second.
    """
    return sum(_thread_s(task) for pid in pids for task in _tasks(pid))


def accepted_at(places: Collection[tuple[str, int]]) -> int:
    """How many connections are open that were made to these IPv4 addresses and ports."""
    found = 0
    for row in (_PROC / "net" / "tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_ = row.split()
        address, _, port = local.partition(":")
        octets = [int(address[at : at + 2], 16) for at in (6, 4, 2, 0)]
        place = ".".join(map(str, octets)), int(port, 16)
        found += state == _ESTABLISHED and place in places
    return found


def busy_s() -> float:
    """CPU seconds that all cores of the machine have not been idle, since it was started."""
    fields = (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen, *_ = map(int, fields)
    return (user + nice + system + interrupts + soft_interrupts + stolen) / _TICKS_PER_S


def children_s() -> float:
    """CPU seconds of the children of this process that ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tasks(pid: int) -> list[Path]:
    try:
        return list((_PROC / str(pid) / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _thread_s(task: Path) -> float:
    try:
        return int((task / "schedstat").read_text().split()[0]) / _NS_PER_S
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def memory_bytes(pid: int) -> int:
    """What a process has in RAM, its share of pages that others have too; 0: it ended (Pss)."""
    return _rolled_up_bytes(pid, "Pss:")


def peak_memory_bytes(pid: int) -> int:
    """The most memory that a process had in RAM since its start or ``forget_peak``; 0: it ended.

    Shared pages count in full (VmHWM).
    """
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def forget_peak(pid: int) -> None:
    """Let ``peak_memory_bytes`` count from what the process has now."""
    (_PROC / str(pid) / "clear_refs").write_text("5")


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Every living process: its id and the fields of its ``stat`` after the command's name."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended since the directory was read
            # The name stands in parentheses and may hold anything, parentheses too.
            yield int(entry.name), text.rpartition(")")[2].split()


def _resident_bytes(pid: int) -> int:
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _rolled_up_bytes(pid: int, name: str) -> int:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)
