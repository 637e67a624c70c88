"""Refusals: the closed list of reasons why a command changes nothing.

A refusal is data, not an exception. Each protocol maps the names to its own form of error in
one table: ``http_edge.decentrl.answers`` (DCTRL-0004 section 11) and
``http_edge.didcomm.protocols.problems``.
"""

from __future__ import annotations

from enum import Enum


class Refusal(Enum):
    """Why a command was refused. The values of the first eleven are those of DCTRL-0004 11.2."""

    INVALID_COMMAND = "INVALID_COMMAND"
    INVALID_SIGNATURE = "INVALID_SIGNATURE"
    INVALID_SIGNATURES = "INVALID_SIGNATURES"
    UNAUTHORIZED_COMMAND = "UNAUTHORIZED_COMMAND"
    TIMESTAMP_OUT_OF_RANGE = "TIMESTAMP_OUT_OF_RANGE"
    DUPLICATE_NONCE = "DUPLICATE_NONCE"
    SENDER_NOT_FOUND = "SENDER_NOT_FOUND"
    SENDER_SIGNING_KEY_NOT_FOUND = "SENDER_SIGNING_KEY_NOT_FOUND"
    RECIPIENT_NOT_FOUND = "RECIPIENT_NOT_FOUND"
    RECIPIENT_NOT_REGISTERED = "RECIPIENT_NOT_REGISTERED"
    COMMUNICATION_CONTRACT_NOT_FOUND = "COMMUNICATION_CONTRACT_NOT_FOUND"
    RECIPIENT_QUEUE_FULL = "RECIPIENT_QUEUE_FULL"
    """The recipient's queue is at its cap of messages, bytes or contract requests."""
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    """The sender's own stored records are at their cap."""
    RATE_LIMITED = "RATE_LIMITED"
    """Too many commands in a short time, or too many nonces in force."""
    INSUFFICIENT_STORAGE = "INSUFFICIENT_STORAGE"
    """The disk of the log is nearly full, and the command would store something. Nothing was
    changed."""
    TEMPORARILY_UNAVAILABLE = "TEMPORARILY_UNAVAILABLE"
    """Outcome unknown: retry with a new nonce."""

    NOT_CONNECTED = "NOT_CONNECTED"
    """The identity is not a connected DIDComm agent."""
    NOT_MEDIATED = "NOT_MEDIATED"
    """The agent has not asked for mediation."""
    KEY_TAKEN = "KEY_TAKEN"
    """The key belongs to another identity."""
    KEY_UNKNOWN = "KEY_UNKNOWN"
    """The key has no owner, or is not in the keylist of the identity."""
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    """The message is larger than the recipient accepts."""
    NOT_QUEUING = "NOT_QUEUING"
    """The recipient does not want messages to wait for it."""
    INVITATION_USED = "INVITATION_USED"
    """The invitation was for one use, and another peer has used it."""
    LIVE_ELSEWHERE = "LIVE_ELSEWHERE"
    """Another session holds the live mode, or implicit pickup."""

    SPEAKS_FOR_ANOTHER = "SPEAKS_FOR_ANOTHER"
    """The DID is no account: it speaks for the account of another DID (``FindAccount``)."""
    NOT_SPEAKING = "NOT_SPEAKING"
    """Another DID speaks for the account now."""
    MESSAGE_EXPIRED = "MESSAGE_EXPIRED"
    """The message has passed the expiry that its sender set."""

    NOT_OWNER = "NOT_OWNER"
    """This host does not own the command's partition and has done nothing: ask the owner. Passes
    only between hosts and edges, never to a client."""
