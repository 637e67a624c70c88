"""Removes the names of erased identities from the rows of a log.

A pass reads the rows in order and changes those that name an erased identity. It removes:

- in the stream of such an identity all names, those of its peers too: they reveal who it was;
- in other streams its own names, as soon as no live data needs them: a message or a saved event
  that names it keeps the name as long as its content is there, a contract until it is over, and a
  key of another owner that is called by the name until the owner gives the key up;
- in the streams of its keys, and of the invitations that it used, all names.

Of an identity that has come back, names leave the rows up to the end of its last erasure; only the
row of a DID that was never let go and so speaks for it again keeps them. From a keylist that no
longer has a key of this name, the name leaves all rows, in one transaction if they are no more than
a thousand. Between two of them a row that added the key has lost the name, and the row that removed
it not yet, only if the rows of several such keys overlap. A DID that speaks for an account again
after its own erasure counts as come back.

These names stay: that of a partition of its own, in seals and in the events that gave it; a label,
a tag or a device of another identity that reads like the name; names in rows that an earlier
release sealed, whose seal covers them; of an identity of another database, names in rows behind the
one that records its erasure here. Seals hold for the changed rows (``eventstore.log.redaction``),
so a pass may end anywhere and begin anew, beside appends and beside another pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from eventsourcing.persistence import Notification

from eventstore.log.codec import decode_or_none
from eventstore.log.errors import LogError
from eventstore.log.event_contents import CONTENT_FIELDS
from eventstore.log.event_log import ChangedRow, EventLog, LogReader, LogRow
from eventstore.log.events import (
    SEAL_TOPIC,
    TOPIC_BY_TYPE,
    AccountExpired,
    BatchSealed,
    ConnectionEstablished,
    ContractExpired,
    ContractStored,
    Event,
    EventTagsUpdated,
    IdentityDedicated,
    IdentityErased,
    IdentityErasureBegun,
    IdentityRegistered,
    IdentityReleased,
    InvitationUsed,
    KeyClaimed,
    KeylistUpdated,
    KeyReleased,
    PushDeviceSet,
    SpeakerNamed,
    topics_of,
)
from eventstore.log.redaction import digest_of, erased_names, is_erased, renamed_state
from eventstore.log.row_check import covers_redacted, is_well_formed, log_row
from eventstore.log.seam import stored_seam
from eventstore.log.streams import is_erased_name, stream_of

_ROWS: Final = 1_000
_BYTES: Final = 262_144
"""The contents that one look-up reads: those of many rows, or one."""
_MS: Final = 1_000
NAMES_ERASED: Final = "names_erased_ms"
"""The mark of a log with the time of its newest whole pass, in Unix milliseconds."""
_GRACE_S_MAX: Final = 3_600.0
"""Most exports are rewritten in this time, and an exporter that was restarted makes a pass."""
_SCANNED_ROWS: Final = 100_000
"""The rows of which one query finds those that end an erasure: a fraction of a second."""
ALWAYS: Final = 2**63 - 1
"""A position behind every row."""
_STAYING: Final = (IdentityDedicated, IdentityReleased)
_OWN_WORDS: Final = (ConnectionEstablished, PushDeviceSet, EventTagsUpdated)
"""Events with texts that an identity chose for itself and its own data: these name no other."""
_Taken: TypeAlias = KeyClaimed | InvitationUsed
_TAKEN: Final = topics_of(KeyClaimed, InvitationUsed)
"""Events in the streams of keys and invitations, which name the owner."""
_ENDS_CONTRACT: Final = topics_of(ContractExpired, IdentityErasureBegun)
_OF_CLAIMS: Final = topics_of(KeyClaimed, KeyReleased)
_OF_SPEAKERS: Final = topics_of(SpeakerNamed)
COMING_BACK: Final[Sequence[type[Event]]] = (
    IdentityRegistered,
    ConnectionEstablished,
    SpeakerNamed,
)
"""Events by which an erased identity comes back; the last one unless it names no account."""
_SAID_LAST: Final = topics_of(IdentityErased, *COMING_BACK)
_BEGUN: Final = topics_of(IdentityErasureBegun)
_LISTING: Final = topics_of(KeylistUpdated)
_OF_KEYLISTS: Final = topics_of(KeylistUpdated, AccountExpired, IdentityErasureBegun)


class Erasure(NamedTuple):
    """The last erasure of an identity: the position of its last row.

    Names leave rows up to ``until``: this position if the identity has come back since, or speaks
    for an account, or is of another database, ``is_elsewhere``; else ``ALWAYS``.
    """

    position: int
    until: int
    is_elsewhere: bool


def erased_identities(log: LogReader) -> dict[bytes, Erasure]:
    """The erasures of all identities by their streams (16 bytes each).

    Scans the log, because no index knows any more who was erased once it has come back.

    Raises:
        LogUnavailable: the log cannot be read.
    """
    erased = TOPIC_BY_TYPE[IdentityErased]
    ends = log.position()
    streams = {
        row.originator_id
        for after in range(0, ends, _SCANNED_ROWS)
        for row in log.read_log(
            after=after, until=after + _SCANNED_ROWS, topics={erased}, limit=_SCANNED_ROWS
        )
    }
    found: dict[bytes, Erasure] = {}
    for stream in streams:
        if not isinstance(stream, UUID):
            continue
        rows = log.stream_rows(stream, topics=_SAID_LAST | _BEGUN)
        said = [row for row in rows if row.topic not in _BEGUN]
        position = max(row.position for row in said if row.topic == erased)
        others = [row for row in said if row.topic not in _OF_SPEAKERS]
        # What was erased in another database may be back there, unknown to this one.
        is_elsewhere = len(said) == len(rows)
        is_back = is_elsewhere or _is_bound(said[-1]) or others[-1].topic != erased
        until = position if is_back else ALWAYS
        found[stream.bytes] = Erasure(position, until, is_elsewhere)
    return found


def _is_bound(newest: LogRow) -> bool:
    """Whether a DID speaks for an account, by the newest row of its stream about that."""
    event = decode_or_none(newest.topic, newest.state)
    account = event.account_did if isinstance(event, SpeakerNamed) else ""
    return bool(account) and not is_erased_name(account)


def is_pass_due(log: LogReader, every_s: float, now_ms: int) -> bool:
    """Has no process made a whole pass within ``every_s`` and a grace?

    An exporter's next pass begins ``every_s`` after it has rewritten its files, and this after the
    mark; so the grace is an hour, or ``every_s`` if that is less. A time further to come than the
    grace is of a clock that was ahead.

    Raises:
        LogUnavailable: the log cannot be read.
    """
    grace_ms = min(every_s, _GRACE_S_MAX) * _MS
    age_ms = now_ms - int(log.settings().get(NAMES_ERASED, "0"))
    return not -grace_ms <= age_ms < every_s * _MS + grace_ms


def note_pass(log: EventLog, now_ms: int) -> None:
    """Let other processes find by ``is_pass_due`` that a whole pass was made now.

    Do nothing if the log cannot be written, such as a backup: they then make a pass of their own.
    """
    with suppress(LogError):
        log.mark(NAMES_ERASED, str(now_ms))


def without_names_of(
    is_gone: Callable[[bytes], bool], kind: type[Event], state: bytes
) -> bytes | None:
    """The state of a row without the names that have such digests; None if it has none.

    The text of a contract has the names of both parties, and goes with either.
    """
    found = False

    def rename(name: Any) -> Any:
        nonlocal found
        digest = digest_of(name)
        if not is_erased(digest) or not is_gone(digest.data):
            return name
        found = True
        return digest

    renamed = renamed_state(kind, state, rename)
    if found and renamed is not None and kind is ContractStored:
        renamed = renamed_state(kind, renamed, _without_bytes)
    return renamed if found else None


class NameErasure:
    """One pass over the rows of one log.

    Attributes:
        erased: the streams (16 bytes each) of the identities whose names leave, each with the
            position up to which rows lose them.
        reached: the position up to which the pass has come.
        end: the position of the last row.
        changed: how many rows lost a name.
        nameless: the streams (16 bytes each) that have lost their name: those of the erased
            identities, and of the keys and invitations that they took.
    """

    def __init__(self, log: EventLog, *, erased_by: int | None = None) -> None:
        """Prepare a pass for the identities whose erasure ended by this position, or by now.

        Raises:
            LogUnavailable: the log cannot be read.
        """
        # The end comes first: the rows of an identity that comes back now are behind it.
        end = log.position()
        by = end if erased_by is None else erased_by
        found = erased_identities(log)
        self.erased: Mapping[bytes, int] = {
            s: one.until for s, one in found.items() if one.position <= by
        }
        self._elsewhere = {s for s, one in found.items() if one.is_elsewhere}
        self.reached = self.changed = 0
        self.end = end if self.erased else 0
        self._log = log
        self.nameless: set[bytes] = set()
        self._keys: set[bytes] = set()
        self._keeping: dict[UUID, bool] = {}
        self._ends: dict[UUID, dict[bytes | None, int]] = {}
        self._unsealed: list[tuple[LogRow, Event | None]] = []
        self._page_to = self._known_to = 0
        self._contents: Collection[int] = ()
        """The positions, up to ``_known_to``, of rows of the page that have their content."""
        self._keylists: dict[UUID, set[int]] = {}
        """By stream, the positions of the rows that lose a name last, all of a stream together."""
        seam = stored_seam(log)
        self._seam = 0 if seam is None else seam.position
        self._whole_to = 0 if seam is None else seam.whole_to

    def step(self) -> bool:
        """Remove the names from the next rows; return whether there are more rows.

        Raises:
            LogUnavailable: the log cannot be read or written now.
            RowsStay: a row left or was changed meanwhile; a new pass does the rest.
        """
        read = self._log.read_log(after=self.reached, limit=_ROWS) if self._is_left else ()
        page = [one for one in read if one.id <= self.end]
        changes = [] if page else self._of_keylists()
        self._page_to = page[-1].id if page else self.reached
        for notification in page:
            changes += self._take(notification)
            self.reached = notification.id
        for batch in _batches(changes):
            self._log.change_rows(batch)
            self.changed += len(batch)
        return bool(self._keylists) or (bool(page) and self._is_left)

    def _of_keylists(self) -> list[ChangedRow]:
        """The changes of the next keylists, each whole: more than ``_ROWS`` of one at most."""
        changes: list[ChangedRow] = []
        while self._keylists:
            stream, positions = next(iter(self._keylists.items()))
            if changes and len(changes) + len(positions) > _ROWS:
                break
            del self._keylists[stream]
            rows = self._log.stream_rows(stream, topics=_LISTING)
            own = [(row, decode_or_none(row.topic, row.state)) for row in rows]
            hits = self._hits(one for one in own if one[0].position in positions)
            changes += [ChangedRow(row.stream, row.position, row.state, to) for row, to in hits]
        return changes

    @property
    def _is_left(self) -> bool:
        return self.reached < self.end

    def _take(self, notification: Notification) -> Sequence[ChangedRow]:
        if not is_well_formed(notification):
            self._unsealed = []
            return []
        row = log_row(notification)
        event = decode_or_none(row.topic, row.state)
        if row.position <= self._seam:
            return (
                [] if row.position <= self._whole_to else self._changed(self._hits([(row, event)]))
            )
        if row.topic != SEAL_TOPIC:
            self._unsealed.append((row, event))
            return []
        batch, self._unsealed = self._unsealed, []
        hits = self._hits(batch)
        if not hits or not isinstance(event, BatchSealed):
            return []
        rows, events = zip(*batch, strict=True)
        return self._changed(hits) if covers_redacted(rows, event, events) else []

    def _hits(self, rows: Iterable[tuple[LogRow, Event | None]]) -> list[tuple[LogRow, bytes]]:
        """Rows with a name to remove, and their states without it.

        In streams that lose all names, and of claims and uses, also rows that lost it already:
        these say which streams are nameless.
        """
        known = ((row, event) for row, event in rows if event is not None)
        after = ((row, self._without_names(row, event)) for row, event in known)
        return [(row, state) for row, state in after if state is not None]

    def _changed(self, hits: Sequence[tuple[LogRow, bytes]]) -> list[ChangedRow]:
        for row, after in hits:
            is_taken = row.topic in _TAKEN
            if is_taken or (row.version == 1 and row.stream in self.erased):
                self.nameless.add(row.stream)
            if is_taken:
                self._keys.update(*erased_names(row.topic, after).values())
            elif row.topic in _LISTING and not self._is_gone(row.position, row.stream):
                self._keylists.setdefault(UUID(bytes=row.stream), set()).add(row.position)
        return [
            ChangedRow(row.stream, row.position, row.state, after)
            for row, after in hits
            if row.state != after
            and row.position not in self._keylists.get(UUID(bytes=row.stream), ())
        ]

    def _without_names(self, row: LogRow, event: Event) -> bytes | None:
        """The state of a row as in ``_hits``; None if the row is none of these."""
        kind = type(event)
        if kind in _STAYING:
            return None
        if self._is_gone(row.position, row.stream):
            return renamed_state(kind, row.state, digest_of)
        if kind in _OWN_WORDS:
            return None
        renamed = without_names_of(self._names_gone(row, event), kind, row.state)
        if renamed is None or (renamed == row.state and not isinstance(event, _Taken)):
            return None  # a row that has no such name, or has lost it in an earlier pass
        if self._is_needed(row, event):
            return None
        if isinstance(event, _Taken) and self._is_of_erased(row, event):
            return renamed_state(kind, row.state, digest_of)
        return renamed

    def _names_gone(self, row: LogRow, event: Event) -> Callable[[bytes], bool]:
        """The function that says whether the row loses the name of a stream."""
        if isinstance(event, KeyReleased):
            return self._keys.__contains__
        if isinstance(event, KeylistUpdated):
            # At any position: a row that removes a key names it as the row that added it.
            return self.erased.__contains__
        return partial(self._is_gone, row.position)

    def _is_needed(self, row: LogRow, event: Event) -> bool:
        """Whether live data still needs the names in the row."""
        stream = UUID(bytes=row.stream)
        if type(event) in CONTENT_FIELDS:
            return self._has_content(row.position)
        if isinstance(event, ContractStored):
            ends = self._ends_of_contracts(stream)
            return row.version > max(ends.get(event.digest, 0), ends.get(None, 0))
        if isinstance(event, KeyClaimed) and self._is_of_erased(row, event):
            # The owner may have come back in its database before the erasure was recorded here.
            may_be_its = stream_of(event.owner_did) in self._elsewhere
            newest = self._log.stream_rows(stream, topics=_OF_CLAIMS)[-1]
            return may_be_its and newest.version == row.version
        if isinstance(event, SpeakerNamed):
            return self._is_spoken_for_again(row, event)
        return isinstance(event, KeyClaimed | KeylistUpdated) and self._has_keys(stream)

    def _has_content(self, position: int) -> bool:
        """Whether a row has its content; reads those of the next rows of the page with it.

        Rows are looked up in their order. No content comes back, and a row whose content leaves
        meanwhile keeps its names until the next pass.
        """
        if position > self._known_to:
            after, until = position - 1, self._page_to
            found = self._log.read_contents(after=after, until=until, bytes_max=_BYTES)
            is_all = sum(map(len, found.values())) < _BYTES
            self._known_to = until if is_all else max(found)
            self._contents = found.keys()
        return position in self._contents

    def _is_gone(self, position: int, stream: bytes) -> bool:
        """Whether a row at this position loses the name of this stream."""
        return self.erased.get(stream, -1) >= position

    def _is_of_erased(self, row: LogRow, event: _Taken) -> bool:
        """Whether what was taken belonged to an erased identity, whatever it is called."""
        owner = event.owner_did if isinstance(event, KeyClaimed) else event.by_did
        return self._is_gone(row.position, stream_of(owner))

    def _is_spoken_for_again(self, row: LogRow, event: SpeakerNamed) -> bool:
        """Whether a DID that was never let go speaks for an account that has come back."""
        if self.erased.get(stream_of(event.account_did), ALWAYS) == ALWAYS:
            return False
        said = self._log.stream_rows(UUID(bytes=row.stream), topics=_OF_SPEAKERS)
        return said[-1].version == row.version

    def _ends_of_contracts(self, stream: UUID) -> dict[bytes | None, int]:
        """The newest version that ended each contract of a stream, by digest; None: all of them.

        Read once in a pass: contracts that end after that keep their names until the next one.
        """
        if stream not in self._ends:
            rows = self._log.stream_rows(stream, topics=_ENDS_CONTRACT)
            events = ((row.version, decode_or_none(row.topic, row.state)) for row in rows)
            self._ends[stream] = {
                getattr(event, "digest", None): version for version, event in events if event
            }
        return self._ends[stream]

    def _has_keys(self, stream: UUID) -> bool:
        """Whether a key has a living owner, by this stream, which is the key's or the owner's.

        All rows of one stream are treated alike in a pass: what adds a key, and what removes it.
        """
        if stream not in self._keeping:
            self._keeping[stream] = self._is_held(stream) or self._lists_erased(stream)
        return self._keeping[stream]

    def _is_held(self, stream: UUID) -> bool:
        """Whether the key of a stream has an owner that is not erased."""
        newest = self._log.stream_rows(stream, topics=_OF_CLAIMS)[-1:]
        said = [(row, decode_or_none(row.topic, row.state)) for row in newest]
        return any(
            isinstance(one, KeyClaimed) and not self._is_of_erased(row, one) for row, one in said
        )

    def _lists_erased(self, stream: UUID) -> bool:
        """Whether the keylist has a key that is called by the name of an erased identity.

        At the end of the pass: what removes a key after that keeps its name, and so does all else.
        """
        listed: set[bytes] = set()
        for row in self._log.stream_rows(stream, topics=_OF_KEYLISTS):
            if row.position > self.end:
                break
            event = decode_or_none(row.topic, row.state)
            if isinstance(event, KeylistUpdated):
                listed.difference_update(map(stream_of, event.removed))
                listed.update(map(stream_of, event.added))
            else:
                listed.clear()
        return not listed.isdisjoint(self.erased)


def _batches(changes: Sequence[ChangedRow]) -> Iterator[Sequence[ChangedRow]]:
    """Changes in transactions of up to ``_ROWS``, in their order.

    Within a keylist with more rows each ends, if there is such a row, behind one that leaves none
    of the names in the list: the rest may be done by a later pass.
    """
    while changes:
        count, listed = min(len(changes), _ROWS), set[bytes]()
        for number, row in enumerate(changes[:_ROWS] if len(changes) > _ROWS else (), 1):
            names = erased_names(TOPIC_BY_TYPE[KeylistUpdated], row.after)
            listed.difference_update(names.get("removed", ()))
            listed.update(names.get("added", ()))
            if not listed:
                count = number
        yield changes[:count]
        changes = changes[count:]


def _without_bytes(name: Any) -> Any:
    return digest_of(name) if isinstance(name, bytes) else name
