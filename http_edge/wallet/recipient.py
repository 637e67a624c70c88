"""A key of the wallet's own that others write to, one for each of its correspondents."""

from __future__ import annotations

from dataclasses import dataclass, field

from http_edge.didcomm.keys import KeyPair
from http_edge.wallet.connection import Opened, open_for
from http_edge.wallet.errors import NotAuthentic
from http_edge.wallet.mediation import Mediation
from http_edge.wallet.sending import Address


@dataclass(frozen=True, slots=True)
class Recipient:
    """A registered key, and the mediation that it is reached through."""

    key: KeyPair = field(repr=False)
    mediation: Mediation

    @property
    def address(self) -> Address:
        """What to tell a sender."""
        return Address(self.key.public, self.mediation.endpoint, self.mediation.routing_keys)

    def unpack(self, envelope: bytes) -> Opened:
        """The message in an envelope, and who sent it.

        Raises:
            NotAuthentic: it is for another key, or does not open.
            UnexpectedAnswer: it is no envelope.
        """
        opened = open_for(self.key, envelope)
        if opened is None:
            raise NotAuthentic("an envelope for another key")
        return opened
