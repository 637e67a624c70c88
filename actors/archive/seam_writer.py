"""Changes the archived part of a log, in transactions that each write a newly signed seam.

A process killed between two transactions leaves a log that is complete and verifies. The log
refuses a second writer at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from msgspec.structs import replace

from actors.core.identity import FOLD
from actors.host.clock import Clock
from eventstore.log.errors import RowsStay
from eventstore.log.event_log import Departure, EventLog, Snapshot
from eventstore.log.public_key import PublicKey
from eventstore.log.seam import SEAM, Seam, sign_seam, state_entry, verified_seam

_STATES_AT_ONCE: Final = 100
_STATE_BYTES_AT_ONCE: Final = 4 * 1024 * 1024


class SigningKey(Protocol):
    """The mediator's key, which signs seams."""

    @property
    def signing_public(self) -> bytes:
        """The Ed25519 public key."""

    def sign(self, message: bytes, /) -> bytes:
        """The signature of a message."""


class NewState(NamedTuple):
    """A stream's new archived state, and the one that it replaces, None without one.

    ``is_renamed``: it has lost a name that a snapshot of the stream can have, however new.
    """

    stream: UUID
    state: Snapshot
    old: Snapshot | None
    is_renamed: bool = False


class SeamWriter:
    """Writes the seam of one log.

    Attributes:
        key: the public key of the seam.
        seam: the present seam of the log; the empty seam if it has none.
        text: the seam as the log stores it, None if it has none.
    """

    def __init__(
        self,
        log: EventLog,
        key: SigningKey,
        mediator_did: str,
        *,
        clock: Clock,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        """A writer for the log of this mediator.

        ``after_step`` is called after each transaction; an exception from it ends the work there.

        Raises:
            RowsStay: the seam is of another mediator.
            SeamRefused: another key signed the seam.
            LogUnavailable: the log cannot be read.
        """
        self.key = PublicKey(key.signing_public)
        self.text = log.settings().get(SEAM)
        if self.text is None:
            self.seam = Seam(mediator_did=mediator_did, fold=FOLD, signed_by=self.key.text)
        else:
            self.seam = verified_seam(self.text, self.key)
        if self.seam.mediator_did != mediator_did:
            raise RowsStay(f"the seam of the log belongs to {self.seam.mediator_did}")
        self._log = log
        self._sign = key.sign
        self._clock = clock
        self._after_step = after_step

    def write(
        self,
        seam: Seam,
        *,
        left: Sequence[int] = (),
        states: Sequence[NewState] = (),
    ) -> None:
        """Remove the rows at these positions, store these archived states, and write the seam.

        The seam gets the number of rows that have left and the time; it has to have all else.

        Raises:
            TurnLost: another process has written the seam.
            RowsStay: a row is missing or still has its content.
            LogUnavailable: the log cannot be read or written now.
        """
        seam = replace(seam, left=seam.left + len(left), at_ms=self._clock())
        text = sign_seam(seam, self._sign)
        new = [(one.stream, one.state) for one in states]
        renamed = [one.stream for one in states if one.is_renamed]
        self._log.let_leave(Departure(self.text, text, left, new, renamed))
        self.seam, self.text = seam, text
        self._after_step()

    def store_states(self, states: Iterable[NewState]) -> None:
        """Store archived states, in several transactions if there are many. Raises as ``write``."""
        for some in _parts(states):
            gone = [state_entry(one.stream, one.old) for one in some if one.old is not None]
            come = [state_entry(one.stream, one.state) for one in some]
            self.write(
                replace(self.seam, states=self.seam.states.minus(gone).plus(come)), states=some
            )


def _parts(states: Iterable[NewState]) -> Iterator[list[NewState]]:
    """Split states into parts that are small enough for one transaction."""
    part: list[NewState] = []
    size_bytes = 0
    for one in states:
        part.append(one)
        size_bytes += len(one.state.state)
        if len(part) >= _STATES_AT_ONCE or size_bytes >= _STATE_BYTES_AT_ONCE:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part
