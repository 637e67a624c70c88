"""Errors of the client library; the base of all is ``ClientError``."""

from __future__ import annotations

from typing import Final


class ClientError(Exception):
    """Base of all errors of the client; never raised itself."""


class CommandRefused(ClientError):
    """The mediator refused the command (DCTRL-0004 11), or its disk is full: nothing changed.

    A retry needs a new nonce and signature (companions, trap 21), so it is a new command.
    ``retry_after_s`` is the mediator's ``Retry-After`` in seconds, if it gave one; ``detail`` names
    the member and the rule that it breaks, or is empty if the mediator does not say.
    """

    def __init__(
        self, code: str, http_status: int, retry_after_s: float | None = None, detail: str = ""
    ) -> None:
        super().__init__(f"refused with {code} (HTTP {http_status}){detail and ': '}{detail}")
        self.code = code
        self.http_status = http_status
        self.retry_after_s = retry_after_s
        self.detail = detail


class OutcomeUnknown(ClientError):
    """The command may or may not have taken effect.

    Raised for TEMPORARILY_UNAVAILABLE, other server failures, and a connection that broke or
    timed out after the command was sent. Repeating is safe only where the command is idempotent.
    """

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"outcome unknown: {reason}")
        self.reason = reason
        self.retry_after_s = retry_after_s


class MediatorUnreachable(ClientError):
    """No connection was made, so nothing was sent."""


class MediatorUnknown(ClientError):
    """The client was given no address for the mediator with this DID."""


class UnexpectedAnswer(ClientError):
    """The answer is not what the protocol describes; is there a mediator at this address?"""


class NotAuthentic(ClientError):
    """A signature did not verify or a ciphertext did not open."""


class UnusableIdentity(ClientError):
    """The identity's file is damaged, readable by others, or lacks a key that is needed."""


SOCKET_REFUSALS: Final[dict[int, tuple[str, bool]]] = {
    4001: ("No AUTHENTICATE arrived within 10 seconds.", False),
    4002: ("The AUTHENTICATE message was malformed.", False),
    4003: ("The clocks of client and mediator differ by more than five minutes.", False),
    4004: ("The mediator cannot resolve the identity's DID.", True),
    4005: ("The signing key id is not in the identity's DID document.", True),
    4006: ("The signature of AUTHENTICATE did not verify.", True),
    4007: ("The identity has no active contract with the mediator.", True),
}
"""What each close code of DCTRL-0004 10.3 means, and whether it is final."""


class SocketRefused(ClientError):
    """The mediator closed the WebSocket and said why by one of the codes in ``SOCKET_REFUSALS``.

    ``final`` says that connecting again cannot help.
    """

    def __init__(self, close_code: int) -> None:
        reason, self.final = SOCKET_REFUSALS[close_code]
        super().__init__(f"socket closed with {close_code}: {reason}")
        self.close_code = close_code
