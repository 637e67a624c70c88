"""Which mediator a DID names, and what a mediator's DID document says (DCTRL-0001, 0004 3.2)."""

from __future__ import annotations

from collections.abc import Mapping

from http_edge.client.errors import UnexpectedAnswer
from http_edge.did_document import read_document
from http_edge.dids import DidDocument, decentrl
from http_edge.encoding import b64decode


def mediator_named_by(did: str) -> str | None:
    """The DID of the mediator that a did:decentrl names; None for any other DID."""
    if decentrl.resolve(did) is None:
        return None
    return b64decode(did.rpartition(":")[2]).decode()


def mediator_document(answer: Mapping[str, object]) -> DidDocument:
    """The keys in a mediator's DID document.

    Raises:
        UnexpectedAnswer: it is no such document, or it lacks a signing key or the pre-key.
    """
    document = read_document(str(answer.get("id")), answer)
    if document is None or not document.signing_keys or document.pre_key is None:
        raise UnexpectedAnswer("not a mediator's DID document")
    return document
