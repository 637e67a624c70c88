"""Where a program begins: a mediator, and the identities whose home it is."""

from __future__ import annotations

from http_edge.clients.decentrl.account import Account
from http_edge.clients.decentrl.identity import Identity
from http_edge.clients.decentrl.mediator import Mediator


class MediatorClient(Mediator):
    """One mediator at one URL, and accounts there; see ``Mediator`` for the arguments."""

    def as_(self, identity: Identity) -> Account:
        """The commands and flows of one identity whose home this mediator is."""
        return Account(identity, self)
