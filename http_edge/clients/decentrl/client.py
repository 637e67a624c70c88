"""The entry point for programs: a mediator, and accounts of identities there."""

from __future__ import annotations

from collections.abc import Callable

from http_edge.clients.decentrl.account import Account
from http_edge.clients.decentrl.identity import Identity
from http_edge.clients.decentrl.mediator import Mediator


class MediatorClient(Mediator):
    """One mediator at one URL, and accounts there; see ``Mediator`` for the arguments."""

    def as_(
        self, identity: Identity, *, save: Callable[[Identity], object] | None = None
    ) -> Account:
        """The account of one identity whose home is this mediator; ``save`` as in ``Account``."""
        return Account(identity, self, save)
