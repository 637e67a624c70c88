"""Refusals: the closed list of reasons why a command changes nothing.

A refusal is data, not an exception. Each protocol maps the names to its own form of error in
one table (``http_edge.decentrl.errors`` for DCTRL-0004 section 11).
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
    TEMPORARILY_UNAVAILABLE = "TEMPORARILY_UNAVAILABLE"
    """Outcome unknown: retry with a new nonce."""
