"""Coordinate mediation 1.0 (RFC 0211): may I be reached through you, and by which keys?

The owner of a key decides whose it is, the identity which keys it has: a key is claimed before it
enters a keylist and released before it leaves it. All of it can be sent again and heals what a
failure in between has left. Keys are written as did:key (RFC 0360); only results of updates are in
the client's own spelling, by which it finds its keys again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from actors.core.commands import GrantMediation, QueryKeylist
from actors.core.refusals import Refusal
from actors.core.replies import Done, KeylistPart
from http_edge.didcomm.envelopes import keys
from http_edge.didcomm.envelopes.messages import InvalidMember, Json, Message, Reply
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.protocols.keylists import Changed, KeyChanges, Keylists
from http_edge.didcomm.protocols.problems import Problem, problem_of
from http_edge.didcomm.protocols.protocol import Family, Outcome, Request, refusal
from http_edge.settings.settings import DidComm

Result: TypeAlias = Literal["success", "no_change", "client_error", "server_error"]

_ADD: Final = "add"
_REMOVE: Final = "remove"
_CLIENT_ERROR: Final = "client_error"
_NO_LIMIT: Final = -1


class MediationTerms(msgspec.Struct, frozen=True):
    """Where messages for mediated agents go: our endpoint, and the key that forwards are for."""

    endpoint: str
    routing_key: bytes


class _Update(msgspec.Struct, frozen=True):
    """One wanted change as it was written, with nothing for what is no text."""

    recipient_key: str
    action: str

    @classmethod
    def read(cls, item: object) -> _Update:
        """The change in an item of ``updates``, whatever it is."""
        written = item if isinstance(item, dict) else {}
        key, action = written.get("recipient_key"), written.get("action")
        return cls(
            recipient_key=key if isinstance(key, str) else "",
            action=action if isinstance(action, str) else "",
        )

    @property
    def is_complete(self) -> bool:
        """Does it name both, well or badly?"""
        return bool(self.recipient_key and self.action)

    def as_result(self, result: Result) -> Json:
        """The change with its result, for the client."""
        return {"recipient_key": self.recipient_key, "action": self.action, "result": result}


class CoordinateMediation:
    """Grants mediation and keeps keylists."""

    def __init__(self, identities: Identities, terms: MediationTerms, settings: DidComm) -> None:
        self._identities = identities
        self._terms = terms
        self._settings = settings
        self._keylists = Keylists(identities, keys_max=settings.keylist_keys_max)

    def family(self) -> Family:
        """The protocol, for the table of families."""
        handlers = {
            "mediate-request": self._request,
            "keylist-update": self._update,
            "keylist-query": self._query,
        }
        return Family("coordinate-mediation", 1, (0,), ("mediator",), handlers)

    async def _request(self, request: Request) -> Outcome:
        """Grant mediation, again and again; deny it to an agent that has not connected."""
        granted = await self._identities.ask(
            request.sender.did, GrantMediation(), request.command, Done
        )
        if granted in {Refusal.TEMPORARILY_UNAVAILABLE, Refusal.INSUFFICIENT_STORAGE}:
            return _report(problem_of(granted))
        if isinstance(granted, Refusal):
            return Outcome(
                reply=Reply("mediate-deny"),
                may_wait=granted is not Refusal.NOT_CONNECTED,
                refused=problem_of(granted).refused,
            )
        body: Json = {
            "endpoint": self._terms.endpoint,
            "routing_keys": [keys.did_key(self._terms.routing_key)],
        }
        return Outcome(reply=Reply("mediate-grant", body))

    async def _update(self, request: Request) -> Outcome:
        """Add and remove keys.

        Only ``keylist_updates_max`` changes of a message are looked at. Those after them are
        ``client_error``, or left out where they do not even name a key and an action: the answer
        must not be much longer than the question.
        """
        wanted = request.message.items("updates")
        if isinstance(wanted, InvalidMember):
            return _report(wanted)
        most = self._settings.keylist_updates_max
        updates = [_Update.read(item) for item in wanted]
        looked_at = [(update, self._key(update)) for update in updates[:most]]
        changed = await self._keylists.change(
            request.sender.did, request.command, _changes(looked_at)
        )
        if isinstance(changed, Refusal):
            return _report(problem_of(changed))
        updated = _results(looked_at, changed)
        updated += [
            update.as_result("client_error") for update in updates[most:] if update.is_complete
        ]
        refused = _CLIENT_ERROR if _CLIENT_ERROR in changed.failed.values() else ""
        answer = Reply("keylist-update-response", {"updated": updated})
        return Outcome(reply=answer, refused=refused)

    def _key(self, update: _Update) -> str | None:
        """The key of a change in base58, or None when it cannot be carried out."""
        key = keys.read_key(update.recipient_key)
        # Our own key has no owner: an agent that had it would take the forwards for all others.
        if key is None or key == self._terms.routing_key or update.action not in {_ADD, _REMOVE}:
            return None
        return keys.base58(key)

    async def _query(self, request: Request) -> Outcome:
        """List keys, oldest first.

        ``keylist_page_max`` bounds every answer: a larger ``limit`` is taken as this, and so is a
        negative one, which ACA-Py writes for none. A negative ``offset``, and what is no integer,
        is refused. ``pagination`` is in the answer where a page was asked for, and where keys are
        left out; not where all of them were asked for, because ACA-Py cannot read it.
        """
        page = _page(request.message)
        if isinstance(page, InvalidMember):
            return _report(page)
        limit, offset = page
        most = self._settings.keylist_page_max
        query = QueryKeylist(offset, min(limit, most) if limit >= 0 else most)
        part = await self._identities.ask(request.sender.did, query, request.command, KeylistPart)
        if isinstance(part, Refusal):
            return _report(problem_of(part))
        count = len(part.keys)
        remaining = max(part.total - offset - count, 0)
        members: Json = {"keys": [{"recipient_key": _did_key(key)} for key in part.keys]}
        if limit >= 0 or offset or remaining:
            members["pagination"] = {"count": count, "offset": offset, "remaining": remaining}
        return Outcome(reply=Reply("keylist", members))


def _report(problem: Problem | InvalidMember) -> Outcome:
    # A stranger has no queue in which the report could wait.
    return refusal(problem, may_wait=problem is not Problem.NOT_CONNECTED)


def _changes(updates: Sequence[tuple[_Update, str | None]]) -> KeyChanges:
    """The last word about each key is what is carried out."""
    last = {key: update.action for update, key in updates if key is not None}
    tried = frozenset(key for update, key in updates if key is not None and update.action == _ADD)
    return KeyChanges(
        add=[key for key, action in last.items() if action == _ADD],
        remove=[key for key, action in last.items() if action == _REMOVE],
        tried=tried,
    )


def _results(updates: Sequence[tuple[_Update, str | None]], changed: Changed) -> list[Json]:
    """What becomes of each update, as if they had been carried out one after the other."""
    is_there = dict(changed.was_there)
    results: list[Json] = []
    for update, key in updates:
        result: Result = "client_error"
        if key in changed.failed:
            result = changed.failed[key]
        elif key is not None:
            wanted = update.action == _ADD
            result = "no_change" if is_there[key] == wanted else "success"
            is_there[key] = wanted
        results.append(update.as_result(result))
    return results


def _page(message: Message) -> tuple[int, int] | InvalidMember:
    """Limit and offset of a query; -1 and 0 where they are not named."""
    paginate = message.body.get("paginate", {})
    if not isinstance(paginate, dict):
        return InvalidMember("paginate", "must be an object")
    limit, offset = _whole(paginate.get("limit", _NO_LIMIT)), _whole(paginate.get("offset", 0))
    if limit is None:
        return InvalidMember("paginate.limit", "must be an integer")
    if offset is None or offset < 0:
        return InvalidMember("paginate.offset", "must be an integer, 0 or more")
    return limit, offset


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _did_key(key: str) -> str:
    raw = keys.read_key(key)
    assert raw is not None, "a keylist holds keys"
    return keys.did_key(raw)
