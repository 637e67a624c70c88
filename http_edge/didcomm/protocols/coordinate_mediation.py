"""Coordinate mediation: grants mediation to agents, and keeps the keylists of their recipients.

Versions 1.0 (RFC 0211), 2.0 and 3.0 (didcomm.org) share one flow; a ``MediationForm`` defines what
differs, above all members. In 1.0 a recipient is a key, and the agent has connected before. In 2.0
and 3.0 a recipient is a DID, the request for mediation itself creates the account
(``protocols.enrolment``), and the grant names the DID by which the mediator was addressed, in a
form that contains its document.

The owner of a name decides which identity has it, and the identity decides which names are in its
keylist: a name is claimed before it enters a keylist, and released after it has left. Every message
can be repeated. An add that is repeated heals what a failure between the two steps has left; after
a removal without an answer the edge itself releases what has left the keylist (``keylists``). Keys
are written as did:key (RFC 0360); only the results of updates use the client's own spelling, by
which the client recognizes its recipients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from actors.core.commands import QueryKeylist
from actors.core.refusals import Refusal
from actors.core.replies import KeylistPart
from http_edge.didcomm.envelopes import keys
from http_edge.didcomm.envelopes.messages import InvalidMember, Json, Message, Reply, read_whole
from http_edge.didcomm.envelopes.recipient_names import canonical_name, twins
from http_edge.didcomm.identities import speaker
from http_edge.didcomm.protocols.enrolment import Enrolment
from http_edge.didcomm.protocols.keylists import Changed, KeyChanges, Keylists
from http_edge.didcomm.protocols.own_address import OwnAddress
from http_edge.didcomm.protocols.protocol import Family, Outcome, Request, refusal
from http_edge.settings.settings import DidComm

Result: TypeAlias = Literal["success", "no_change", "client_error", "server_error"]

_ADD: Final = "add"
_REMOVE: Final = "remove"
_CLIENT_ERROR: Final[Result] = "client_error"
_NO_LIMIT: Final = -1


class MediationForm(msgspec.Struct, frozen=True):
    """The differences between the versions of coordinate mediation.

    ``recipient`` is the member that names a recipient; ``name_of`` reads it. ``update``, ``query``
    and ``listing`` are names of messages; ``listed`` is the list member of a listing.
    ``repeated_add`` is the result of adding a recipient that is already in the keylist. ``grant``
    writes the body of a grant from our address and the routing DID.
    """

    major: int
    recipient: str
    name_of: Callable[[str], str | None]
    repeated_add: Result
    grant: Callable[[OwnAddress, str], Json]
    update: str = "keylist-update"
    query: str = "keylist-query"
    listing: str = "keylist"
    listed: str = "keys"


def _key_name(text: str) -> str | None:
    key = keys.read_key(text)
    return None if key is None else keys.base58(key)


FORM_1: Final = MediationForm(
    1,
    recipient="recipient_key",
    name_of=_key_name,
    repeated_add="no_change",
    grant=lambda own, _: {"endpoint": own.endpoint, "routing_keys": [own.dids.did_key]},
)
FORM_2: Final = MediationForm(
    2,
    recipient="recipient_did",
    name_of=canonical_name,
    repeated_add="success",  # Credo gives up at anything else
    # The specification's example has a list of DIDs, but the clients read a text.
    grant=lambda _, routing_did: {"routing_did": routing_did},
)
FORM_3: Final = MediationForm(
    3,
    recipient="recipient_did",
    name_of=canonical_name,
    update="recipient-update",
    query="recipient-query",
    listing="recipient",
    listed="dids",
    repeated_add="success",
    grant=lambda _, routing_did: {"routing_did": [routing_did]},
)
FORMS: Final = (FORM_1, FORM_2, FORM_3)


class _Update(msgspec.Struct, frozen=True):
    """One wanted change as it was written, and the name that it is about; None if it is invalid."""

    recipient: str
    action: str
    name: str | None


class CoordinateMediation:
    """Grants mediation and keeps keylists, in one version of the protocol."""

    def __init__(
        self,
        form: MediationForm,
        enrolment: Enrolment,
        keylists: Keylists,
        own: OwnAddress,
        settings: DidComm,
    ) -> None:
        self._form = form
        self._enrolment = enrolment
        self._own = own
        self._settings = settings
        self._keylists = keylists

    def family(self) -> Family:
        """Return the protocol for the table of families."""
        handlers = {
            "mediate-request": self._request,
            self._form.update: self._update,
            self._form.query: self._query,
        }
        return Family("coordinate-mediation", self._form.major, (0,), ("mediator",), handlers)

    async def _request(self, request: Request) -> Outcome:
        """Grant mediation, any number of times; deny it to an agent that may not have it."""
        refused = await self._enrolment.grant(request)
        if refused is not None:
            return refused
        routing_did = self._own.dids.routing(request.message.addressed_to)
        return Outcome(reply=Reply("mediate-grant", self._form.grant(self._own, routing_did)))

    async def _update(self, request: Request) -> Outcome:
        """Add and remove recipients.

        Only the first ``keylist_updates_max`` changes of a message are processed. Further changes
        get ``client_error``, or are left out if they do not even name a recipient and an action:
        the answer must not be much longer than the request.
        """
        wanted = request.message.items("updates")
        if isinstance(wanted, InvalidMember):
            return _report(wanted)
        most = self._settings.keylist_updates_max
        updates = [self._read(item) for item in wanted[:most]]
        changes = _changes(updates, request.message, on_either_curve=self._form is not FORM_1)
        changed = await self._keylists.change(request.sender.did, request.command, changes)
        if isinstance(changed, Refusal):
            return _report(changed)
        updated = self._results(updates, changed)
        for item in wanted[most:]:
            recipient, action = self._written(item)
            if recipient and action:
                updated.append(self._result(recipient, action, _CLIENT_ERROR))
        is_refused = _CLIENT_ERROR in changed.failed.values() and all(
            each["result"] != "success" for each in updated
        )
        refused = _CLIENT_ERROR if is_refused else ""
        return Outcome(
            reply=Reply(f"{self._form.update}-response", {"updated": updated}), refused=refused
        )

    def _written(self, item: object) -> tuple[str, str]:
        """Return recipient and action of a change, any JSON value; what is no text is empty."""
        written = item if isinstance(item, dict) else {}
        texts = (written.get(self._form.recipient), written.get("action"))
        recipient, action = (text if isinstance(text, str) else "" for text in texts)
        return recipient, action

    def _read(self, item: object) -> _Update:
        recipient, action = self._written(item)
        name = self._form.name_of(recipient)
        # No agent may own a name of ours: it would receive the forwards for all others.
        is_valid = name not in self._own.dids.names and action in {_ADD, _REMOVE}
        return _Update(recipient, action, name if is_valid else None)

    def _results(self, updates: Sequence[_Update], changed: Changed) -> list[Json]:
        """Return each update with its result, as if they had been carried out one by one.

        What the last update of a name undoes is not carried out: an addition before a removal is
        answered as one of a free key, whatever identity has the key.
        """
        is_there = dict(changed.was_there)
        results: list[Json] = []
        for update in updates:
            name, result = update.name, _CLIENT_ERROR
            if name in changed.failed:
                result = changed.failed[name]
            elif name is not None:
                wanted = update.action == _ADD
                unchanged = self._form.repeated_add if wanted else "no_change"
                result = unchanged if is_there[name] == wanted else "success"
                is_there[name] = wanted
            results.append(self._result(update.recipient, update.action, result))
        return results

    def _result(self, recipient: str, action: str, result: Result) -> Json:
        return {self._form.recipient: recipient, "action": action, "result": result}

    async def _query(self, request: Request) -> Outcome:
        """List recipients, oldest first.

        ``keylist_page_max`` bounds every answer: it replaces a larger ``limit``, and a negative
        one, by which ACA-Py means no limit. A negative ``offset`` is refused, and so is any value
        that is not an integer. The answer has ``pagination`` if the query asked for a page, or if
        recipients are left out; else it has none, because ACA-Py cannot read it.
        """
        page = _page(request.message)
        if isinstance(page, InvalidMember):
            return _report(page)
        limit, offset = page
        most = self._settings.keylist_page_max
        query = QueryKeylist(offset, min(limit, most) if limit >= 0 else most)
        part = await request.ask_account(query, KeylistPart)
        if isinstance(part, Refusal):
            return _report(part)
        count = len(part.keys)
        remaining = max(part.total - offset - count, 0)
        members: Json = {
            self._form.listed: [{self._form.recipient: _shown(name)} for name in part.keys]
        }
        if limit >= 0 or offset or remaining:
            members["pagination"] = {"count": count, "offset": offset, "remaining": remaining}
        return Outcome(reply=Reply(self._form.listing, members))


def _report(problem: InvalidMember | Refusal) -> Outcome:
    # A stranger has no queue in which the report could wait.
    return refusal(problem, may_wait=problem is not Refusal.NOT_CONNECTED)


def _held(message: Message) -> frozenset[str]:
    """Return the names whose keys the sender is proven to hold: those of its DID and its key."""
    own = map(canonical_name, (message.sender_did, speaker()))
    return frozenset(name for each in own if each is not None for name in (each, *twins(each)))


def _changes(updates: Sequence[_Update], message: Message, *, on_either_curve: bool) -> KeyChanges:
    """Return the changes to make: for each key, its last update counts."""
    last = {update.name: update.action for update in updates if update.name is not None}
    return KeyChanges(
        add=[key for key, action in last.items() if action == _ADD],
        remove=[key for key, action in last.items() if action == _REMOVE],
        held=_held(message),
        held_did=message.whole_did or message.sender_did,
        on_either_curve=on_either_curve,
    )


def _page(message: Message) -> tuple[int, int] | InvalidMember:
    """Return limit and offset of a query; where one is missing or null it is -1 or 0."""
    paginate = message.body.get("paginate")
    if paginate is None:
        return _NO_LIMIT, 0
    if not isinstance(paginate, dict):
        return InvalidMember("paginate", "must be an object")
    limit, offset = _or(paginate.get("limit"), _NO_LIMIT), _or(paginate.get("offset"), 0)
    if limit is None:
        return InvalidMember("paginate.limit", "must be an integer")
    if offset is None or offset < 0:
        return InvalidMember("paginate.offset", "must be an integer, 0 or more")
    return limit, offset


def _or(value: object, default: int) -> int | None:
    return default if value is None else read_whole(value)


def _shown(name: str) -> str:
    """Return a name as listed: a key as did:key, a DID unchanged."""
    key = keys.read_key(name)
    return name if key is None else keys.did_key(key)
