"""What an attack is: its name, what it does and how often, its bounds, and the program itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from tests.attacks.target import Target

Program: TypeAlias = Callable[[Target], AsyncIterator[None]]
"""Prepares until its ``yield``, and attacks afterwards, until ``Target.is_over``."""
Pair: TypeAlias = Literal["messages", "live", "endpoint"]
"""Who measures: a sender and a socket of Decentrl, or a wallet in live mode or with an endpoint."""

P99_TIMES_MAX: Final = 3.0
MEMORY_MIB_MAX: Final = 512.0
JUNK_MB_A_DAY_MAX: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a measurement may not exceed; None is no bound.

    Attributes:
        p99_times_max: The honest p99, of accepting and of delivery, by that of all quiet phases.
        memory_mib_max: The peak of an edge, and of a host.
        log_mb_a_day_max: What the log would grow in a day beyond what the honest pair writes.
        stored_per_sent_max: Bytes in the log by bytes that the attack sent.
    """

    p99_times_max: float | None = P99_TIMES_MAX
    memory_mib_max: float | None = MEMORY_MIB_MAX
    log_mb_a_day_max: float | None = None
    stored_per_sent_max: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack.

    Attributes:
        name: How it is called.
        about: What it does, in a line.
        rate: How much of it, in words.
        program: See ``Program``.
        bounds: What must hold beside it; that the honest pair is not refused always must.
        addresses: Client addresses that it comes from.
        settings: What the mediator is started with besides its defaults.
        descriptors: Files that the mediator's processes may open; None is what the shell allows.
        long_ago: It prepares without rates, and the mediator is started anew before anything is
            measured: what takes days at the default rates was done by then.
        pair: Who measures.
    """

    name: str
    about: str
    rate: str
    program: Program
    bounds: Bounds = Bounds()
    addresses: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    descriptors: int | None = None
    long_ago: bool = False
    pair: Pair = "messages"
