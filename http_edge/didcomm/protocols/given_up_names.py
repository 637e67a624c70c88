"""Names of DIDs that an account has given up, and that the holder of their key may not take back.

A DID with several keys for agreement is one identity for the image of its Ed25519 key and another
for each other key. Given up as the first, it must not take its name by another, which may be
stolen.
"""

from __future__ import annotations

from actors.core.commands import FindKeyOwner, QueryConnection
from actors.core.refusals import Refusal
from actors.core.replies import Connected, KeyOwner
from http_edge.didcomm.envelopes.agent_documents import resolve_document
from http_edge.didcomm.envelopes.keys import did_key
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.identities import NO_ACCOUNT, Identities, key_target


async def given_up_by_owner(
    identities: Identities, name: str, held_did: str, command: bytes
) -> Refusal | None:
    """Return ``KEY_TAKEN`` if the account that has a name has given up the DID of this name.

    The DID spoke for it as another identity: that of an Ed25519 key in its document. The claimer's
    ``held_did`` contains this document; the account may have stated a hash of it, another DID of
    the same key, or in DIDComm v1 the DID of another, whose document has no such key. ``command``
    is the key of the claim in the log. Any other refusal: it is not known.
    """
    found = await identities.ask(key_target(name), FindKeyOwner(), command, KeyOwner)
    if isinstance(found, Refusal):
        return None if found is Refusal.KEY_UNKNOWN else found
    owner = found.owner_did
    known = await identities.ask(owner, QueryConnection(), command, Connected, by_mediator=True)
    if isinstance(known, Refusal):
        return None if known in NO_ACCOUNT else known
    prior = [did for did in known.prior_dids if canonical_name(did) == name]
    is_held = canonical_name(held_did) == name
    document = resolve_document(held_did if is_held else next(iter(prior), ""))
    if document is None:
        return None
    signing = map(document.signing_twin, document.agreement.values())
    for did in {did_key(key) for key in signing if key is not None}:
        spoke = await identities.find_account(did, command)
        if isinstance(spoke, Refusal):
            return spoke
        if owner not in {did, spoke.account_did}:
            continue
        account = await identities.find_account(owner, command, speaker_did=did)
        if isinstance(account, Refusal):
            return account
        if prior or not (account.never_spoke or account.speaker_did == did):
            return Refusal.KEY_TAKEN
    return None
