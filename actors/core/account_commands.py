"""Commands on accounts and keys: mediation, speakers, signs of life, owners of keys.

The commands of ``actors.core.commands`` that DIDComm agents need beyond their own queue; the same
rules hold here.
"""

from __future__ import annotations

import msgspec

from eventstore.log.events import Seconds


class CommandBase(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all commands: a tagged array on the wire between edge and host."""


class Connection(msgspec.Struct, frozen=True, array_like=True):
    """What a DIDComm agent stated about itself when it connected (RFC 0160, RFC 0023).

    ``endpoint`` is an http(s) or ws(s) URL, or empty for an agent that fetches its messages;
    ``routing_keys`` are base58; ``protocol`` is ``didexchange/1.1`` and the like;
    ``invitation_id`` is empty if the agent used no invitation.
    """

    peer_did: str
    label: str
    endpoint: str
    routing_keys: list[str]
    protocol: str
    invitation_id: str


class PushDevice(msgspec.Struct, frozen=True, array_like=True):
    """A device to notify of waiting messages (RFC 0699, RFC 0734); fields as in the event."""

    channel: str
    token: str
    platform: str


class ClaimedKey(msgspec.Struct, frozen=True, array_like=True):
    """A key, or the short name of a DID, and the number of the claim that holds it."""

    key: str
    claim: int


class GrantMediation(CommandBase, frozen=True):
    """Let the target register keys; a repetition changes nothing (RFC 0211).

    DIDComm v2 has no earlier handshake, so this command also stores ``connection`` and adds
    ``own``, the sender's own names, to the keylist. The edge has claimed those names before.
    """

    connection: Connection | None = None
    own: list[ClaimedKey] = []


class SetPushDevice(CommandBase, frozen=True):
    """Set the device to notify of messages for the target; None notifies none.

    ``instead_of``: change nothing unless this is the token of the present device.
    """

    device: PushDevice | None
    instead_of: str | None = None


class QueryPushDevice(CommandBase, frozen=True):
    """Ask for the device to notify of messages for the target."""


class FindAccount(CommandBase, frozen=True):
    """Ask what the mediator knows of the target as an account, and which keys its keylist has.

    ``did``: ask also whether this DID has never spoken for it; empty for none.
    """

    keys: list[str] = []
    did: str = ""


class NameSpeaker(CommandBase, frozen=True):
    """Let the target, a DID without an account of its own, speak for another DID's account."""

    account_did: str


class UnnameSpeaker(CommandBase, frozen=True):
    """Stop the target from speaking for ``account_did``, an account that is over."""

    account_did: str


class RotateAccount(CommandBase, frozen=True):
    """Let ``speaker_did`` speak for the target from now on, in place of ``prior_did``.

    A repetition changes nothing. ``connection``, unless None, replaces the agent's earlier
    statement; ``own`` are names of the new DID that the edge has claimed before. ``issued_at_s``
    is when the agent rotated.
    """

    prior_did: str
    speaker_did: str
    issued_at_s: Seconds
    connection: Connection | None = None
    own: list[ClaimedKey] = []


class EndAccount(CommandBase, frozen=True):
    """End the target's queue, keylist and connection, on the order of ``speaker_did``."""

    speaker_did: str
    issued_at_s: Seconds


class SeeAgent(CommandBase, frozen=True):
    """Note that the target itself sent a message, since its other commands may store nothing."""


class ClaimKey(CommandBase, frozen=True):
    """Give a key to one owner by a new claim; the target is ``key:`` and the key.

    ``holds_key``: the owner has proved that it holds the private key, and so takes the key from
    any other owner.
    """

    owner_did: str
    holds_key: bool = False


class ReleaseKey(CommandBase, frozen=True):
    """Give up a key if ``claim`` is its newest and the owner's; the target is as in ``ClaimKey``.

    An older claim ends nothing and is refused, KEY_TAKEN: the owner has claimed the key again.
    """

    owner_did: str
    claim: int


class FindKeyOwner(CommandBase, frozen=True):
    """Ask for the owner of a key; the target is ``key:`` and the key in base58."""
