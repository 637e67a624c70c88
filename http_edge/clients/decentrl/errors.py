"""Errors of the client library.

ClientError
├── CommandRefused       the mediator refused the command: nothing changed, the nonce is used up
├── OutcomeUnknown       the command may or may not have taken effect
├── MediatorUnreachable  no connection was made: the command has no effect
├── MediatorUnknown      the client has no address for this mediator
├── UnexpectedAnswer     the answer is not what the protocol describes
├── NotAuthentic         a signature or a decryption failed: the data is not what it claims to be
├── UnusableIdentity     the identity file or a key for this contract is missing or damaged
└── SocketRefused        the mediator closed the WebSocket with one of the codes of DCTRL-0004 10.3
    ├── AuthenticationTimedOut   4001
    ├── MessageMalformed         4002
    ├── TimestampOutOfRange      4003
    ├── DidNotFound              4004  final
    ├── SigningKeyNotFound       4005  final
    ├── SignatureInvalid         4006  final
    └── NotRegistered            4007  final
"""

from __future__ import annotations

from typing import ClassVar, Final


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


class SocketRefused(ClientError):
    """The mediator closed the WebSocket and said why (DCTRL-0004 10.3).

    ``final`` says that connecting again cannot help.
    """

    close_code: ClassVar[int]
    final: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__(f"socket closed with {self.close_code}: {type(self).__doc__}")


class AuthenticationTimedOut(SocketRefused):
    """No AUTHENTICATE arrived within 10 seconds."""

    close_code = 4001


class MessageMalformed(SocketRefused):
    """The AUTHENTICATE message was malformed."""

    close_code = 4002


class TimestampOutOfRange(SocketRefused):
    """The clocks of client and mediator differ by more than five minutes."""

    close_code = 4003


class DidNotFound(SocketRefused):
    """The mediator cannot resolve the identity's DID."""

    close_code = 4004
    final = True


class SigningKeyNotFound(SocketRefused):
    """The signing key id is not in the identity's DID document."""

    close_code = 4005
    final = True


class SignatureInvalid(SocketRefused):
    """The signature of AUTHENTICATE did not verify."""

    close_code = 4006
    final = True


class NotRegistered(SocketRefused):
    """The identity has no active contract with the mediator."""

    close_code = 4007
    final = True


SOCKET_REFUSALS: Final[dict[int, type[SocketRefused]]] = {
    kind.close_code: kind for kind in SocketRefused.__subclasses__()
}
