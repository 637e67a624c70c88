"""The erasure of an identity, in the plainest form: what its first step ends, and what follows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields
from typing import Final

from actors.core import commands as c
from actors.core import replies as r
from actors.core.refusals import Refusal
from actors.core.submissions import Submission
from tests.model.reference import BY_SPEAKERS, Box, Reference

NEW: Final = c.Register | c.Connect | c.GrantMediation | c.NameSpeaker
"""What an identity cannot have anew before all that it had is gone."""
_KEPT: Final = {
    *("messages", "requests", "requested_ms", "public", "published_ms"),
    *("version", "added_ms", "delivered_ms", "removed_ms", "refusing"),
}
"""What later steps remove, and what names no other."""


@dataclass
class ErasableBox(Box):
    """An identity that can be erased.

    ``erasing`` is the version at which its erasure began, 0 if none is under way. ``unerased`` are
    the versions up to which its saved events are still to be erased, and ``listed`` says whether
    they are on lists.
    """

    erasing: int = 0
    unerased: int = 0
    listed: bool = False
    is_erased: bool = False

    def erase(
        self, did: str, command: c.EraseIdentity, now_ms: int, *, has_lists: bool
    ) -> r.Erased | Refusal:
        """Begin, or do the next step; ``has_lists``: its saved events are on lists of a store."""
        if self.erasing:
            return self.next_step(command.records_max, now_ms)
        if command.by == "owner":
            if self.until_s <= now_ms / 1000:
                return Refusal.UNAUTHORIZED_COMMAND
            if self.account or self.speaker not in {"", did}:
                return Refusal.INVALID_COMMAND
        if command.by == "continued":
            return r.Erased(0, is_over=True)
        if self.account:
            return Refusal.SPEAKS_FOR_ANOTHER
        if self.is_erased or not (self.version or command.by == "foreign"):
            return r.Erased(0, is_over=True, is_known=self.version > 0)
        keys = [c.ClaimedKey(key, claim) for key, claim in self.keylist.items()]
        count = len(self.contracts) + len(keys)
        begun = r.Erased(count, is_over=False, keys=keys, speaker_dids=[*self.spoke])
        self._begin(has_lists=has_lists)
        return begun

    def _begin(self, *, has_lists: bool) -> None:
        """All ends at once but what later steps remove, and what names no other."""
        self.version = self.version or 1  # one that was never here is named first
        is_saved, blank = bool(self.saved), ErasableBox()
        for name in {each.name for each in fields(self)} - _KEPT:
            setattr(self, name, getattr(blank, name))
        self.version += 1
        self.erasing = self.version
        self.unerased = self.version if is_saved else 0
        self.listed = is_saved and has_lists

    def next_step(self, most: int, now_ms: int) -> r.Erased:
        """Public events first, then messages, contract requests, saved events, at last the end."""
        if self.public:
            count = len(self.public[:most])
            self.version += 1
            self.public = self.public[most:]
        elif self.messages:
            count = len(self.messages[:most])
            self.remove([message.message_id for message in self.messages[:most]], now_ms)
        elif self.requests:
            count = len(self.requests[:most])
            self.drop_requests(self.requests[:most])
        elif self.unerased:
            count = self._of_saved_events(most)
        else:
            self.version += 1
            self.erasing, self.is_erased = 0, True
            return r.Erased(0, is_over=True)
        return r.Erased(count, is_over=False)

    def _of_saved_events(self, most: int) -> int:
        """Off all their lists in one step, which is large enough here; then as many as fit."""
        self.version += 1
        if self.listed:
            self.listed = False
            return 0
        count = min(2 * most, self.unerased)
        self.unerased -= count
        return count


class ErasureReference(Reference):
    """The plain model of a mediator whose identities can be erased.

    ``has_lists``: the saved events of its identities are on lists, as those of a store are.
    """

    def __init__(self, *, has_lists: bool) -> None:
        super().__init__()
        self.boxes: defaultdict[str, ErasableBox] = defaultdict(ErasableBox)  # type: ignore[assignment]
        self._has_lists = has_lists

    def _decide_on(
        self, did: str, box: Box, request: Submission, command: c.Command, now_ms: int, new: str
    ) -> r.Reply | Refusal:
        assert isinstance(box, ErasableBox)
        if isinstance(command, c.EraseIdentity):
            return box.erase(did, command, now_ms, has_lists=self._has_lists)
        if box.erasing and isinstance(command, c.ExpireRecords):
            return r.Expired(box.next_step(command.records_max, now_ms).records + 1, 0, 0)
        if box.erasing and isinstance(command, NEW):
            is_others = isinstance(command, BY_SPEAKERS) and request.speaker not in {"", did}
            return Refusal.NOT_SPEAKING if is_others else Refusal.TEMPORARILY_UNAVAILABLE
        said = super()._decide_on(did, box, request, command, now_ms, new)
        begins_anew = isinstance(command, NEW) and not isinstance(command, c.NameSpeaker)
        box.is_erased = box.is_erased and (isinstance(said, Refusal) or not begins_anew)
        return said
