"""The entry point for programs: a mediator, and accounts of identities there."""

from __future__ import annotations

from http_edge.clients.decentrl.account import Account
from http_edge.clients.decentrl.identity import Identity
from http_edge.clients.decentrl.mediator import Mediator


class MediatorClient(Mediator):
    """One mediator at one URL, and accounts there; see ``Mediator`` for the arguments."""

    def as_(self, identity: Identity) -> Account:
        """The account of one identity whose home is this mediator."""
        return Account(identity, self)
