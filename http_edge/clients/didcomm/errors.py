"""Errors of the wallet; the base of all is ``WalletError``."""

from __future__ import annotations

from typing import Final

from http_edge.didcomm.envelopes.messages import Json

_MAY_BE_REPEATED: Final = frozenset(
    {
        "request_processing_error",
        "temporarily_unavailable",
        "e.m.me.res.rate-limited",
        "e.m.me.try-again",
        "e.p.me.res.storage",
    }
)


class WalletError(Exception):
    """Base of all errors of the wallet; never raised itself."""


class ProblemReported(WalletError):
    """The mediator answered with a problem report: ``code``, ``text``, and the whole message."""

    def __init__(self, code: str, text: str, report: Json) -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code
        self.text = text
        self.report = report

    @property
    def may_be_repeated(self) -> bool:
        """Whether the same request may succeed after some seconds.

        Reports of v1 say so by ``who_retries`` (RFC 0035), those of a handshake by their code (RFC
        0023, RFC 0160), and those of pickup 1.0 and of v2 by the codes with which a mediator of
        Poste is short of time or room.
        """
        return self.report.get("who_retries") == "you" or self.code in _MAY_BE_REPEATED


class MediatorRefused(WalletError):
    """The mediator answered with an HTTP status that is no success, before or without DIDComm.

    ``retry_after_s`` is the mediator's ``Retry-After`` in seconds, if it gave one. With a
    ``status`` of 500 or more the message may have been taken, unless ``body`` says otherwise.
    """

    def __init__(self, status: int, body: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"HTTP {status} {body}".rstrip())
        self.status = status
        self.body = body
        self.retry_after_s = retry_after_s


class MediatorUnreachable(WalletError):
    """No answer came over HTTP, or no socket opened; a sent message may have taken effect."""


class ConnectionLost(WalletError):
    """The socket ended or broke; the last request may have taken effect.

    A ``close_code`` from 4400 to 4503 means that the mediator did not take a message without a
    proven sender: it is 4000 plus the HTTP status.
    """

    def __init__(self, reason: str, close_code: int | None = None) -> None:
        super().__init__(reason)
        self.close_code = close_code


class NoAnswer(WalletError):
    """Nothing came over the socket in time; the request may have taken effect."""


class NotAuthentic(WalletError):
    """An envelope does not open or is not from the mediator, or a signature is wrong."""


class UnexpectedAnswer(WalletError):
    """The answer is not what the protocol describes."""


class UnusableInvitation(WalletError):
    """The text is no invitation, or none that this wallet can follow."""
