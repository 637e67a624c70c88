"""What is asked of accounts and of names: who speaks, whose a key is, what a message v2 brings.

The part of ``actors.core.commands`` that DIDComm agents need beyond a queue of their own; the same
rules hold here.
"""

from __future__ import annotations

import msgspec

from eventstore.log.events import Seconds


class CommandBase(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all commands: a tagged array on the wire between edge and host."""


class Connection(msgspec.Struct, frozen=True, array_like=True):
    """What a DIDComm agent states of itself when it connected (RFC 0160, RFC 0023).

    ``endpoint`` is an http(s) or ws(s) URL, or empty for an agent that fetches its messages;
    ``routing_keys`` are base58; ``protocol`` is ``didexchange/1.1`` and the like;
    ``invitation_id`` is empty where it came without one.
    """

    peer_did: str
    label: str
    endpoint: str
    routing_keys: list[str]
    protocol: str
    invitation_id: str


class ClaimedKey(msgspec.Struct, frozen=True, array_like=True):
    """A key, or the short name of a DID, and the number of the claim that it is held by."""

    key: str
    claim: int


class GrantMediation(CommandBase, frozen=True):
    """Let the target register keys; again changes nothing (RFC 0211).

    In DIDComm v2 nothing comes before it: ``connection`` is stored with it, and ``own``, the
    sender's own names, enter the keylist with it. They have been claimed before.
    """

    connection: Connection | None = None
    own: list[ClaimedKey] = []


class FindAccount(CommandBase, frozen=True):
    """What is known of the target as an account; which of these keys has its keylist?"""

    keys: list[str] = []


class NameSpeaker(CommandBase, frozen=True):
    """The target, a DID without an account of its own, is to speak for the account of another."""

    account_did: str


class UnnameSpeaker(CommandBase, frozen=True):
    """The target is not to speak for that account any more, which is over."""

    account_did: str


class RotateAccount(CommandBase, frozen=True):
    """``speaker_did`` speaks for the target from now on, in the place of ``prior_did``.

    Again changes nothing. ``connection`` replaces what the agent stated where it is not None;
    ``own`` are names of the new DID, claimed before. ``issued_at_s`` is when the agent rotated.
    """

    prior_did: str
    speaker_did: str
    issued_at_s: Seconds
    connection: Connection | None = None
    own: list[ClaimedKey] = []


class EndAccount(CommandBase, frozen=True):
    """The target's queue, keylist and connection end, by the word of ``speaker_did``."""

    speaker_did: str
    issued_at_s: Seconds


class EraseIdentity(CommandBase, frozen=True):
    """Erase all that the target has, ``records_max`` records at a time; ``by``: operator, or owner.

    Asked again until the answer says that nothing is left.
    """

    by: str
    records_max: int


class SeeAgent(CommandBase, frozen=True):
    """A message of the target itself came; what else it asks of the target may store nothing."""


class ExpireRecords(CommandBase, frozen=True):
    """Remove what is due by the rules of retention, ``records_max`` records at most."""

    records_max: int


class QueueEnvelopes(CommandBase, frozen=True):
    """Queue the envelopes of one message of DIDComm v2 for the target, in order, all or none.

    ``recipient_key`` as in ``QueueEnvelope``. After ``expires_at_s`` they are of no use, 0 for
    never; they are not handed out before ``delay_ms`` have passed, as long as the host lives.
    """

    recipient_key: str
    payloads: list[bytes]
    expires_at_s: Seconds = 0
    delay_ms: int = 0


class ClaimKey(CommandBase, frozen=True):
    """Make a key the owner's alone, by a new claim; the target is ``key:`` and the key.

    ``holds_key``: it is proven that the owner holds the key itself, so it gets it from another.
    """

    owner_did: str
    holds_key: bool = False


class ReleaseKey(CommandBase, frozen=True):
    """Give a key up if ``claim`` is its newest and the owner's; the target is as in ``ClaimKey``.

    An older claim ends nothing: the key was claimed again meanwhile.
    """

    owner_did: str
    claim: int


class FindKeyOwner(CommandBase, frozen=True):
    """Whose key is it? The target is ``key:`` and the key in base58."""
