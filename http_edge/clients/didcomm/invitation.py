"""Invitations as a wallet reads them: out-of-band and connections 1.0, URL or JSON.

RFC 0434 and RFC 0160, and out-of-band 2.0 of DIDComm v2. An invitation names the key that must
prove the answer, and the endpoint for the request; in DIDComm v2 it names a DID that has both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from yarl import URL

from http_edge.clients.didcomm.errors import MediatorUnreachable, UnusableInvitation
from http_edge.clients.didcomm.transport import read_bounded, refused
from http_edge.crypto.encoding import b64decode
from http_edge.crypto.strict_json import JsonRefused, parse
from http_edge.didcomm.envelopes.keys import curve_public, read_key
from http_edge.didcomm.envelopes.messages import Json, read_type
from http_edge.didcomm.envelopes.peer_documents import resolve

_PARAMETERS: Final = ("oob", "c_i")
_PARAMETERS_2: Final = ("_oob",)
_FAMILIES: Final = frozenset({"connections", "out-of-band"})
_BYTES_MAX: Final = 64 * 1024
_SECONDS_MAX: Final = 30.0
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class Invitation:
    """An invitation: its id, the inviter's key and endpoint, and the handshakes it offers.

    ``protocols`` have the form ``didexchange/1.1``, in the inviter's order of preference.
    """

    id: str
    key: bytes
    endpoint: str
    protocols: tuple[str, ...]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Invitation2:
    """An out-of-band 2.0 invitation: its id, and the DID of the inviter."""

    id: str
    did: str


def read_invitation(source: str | bytes | Json) -> Invitation:
    """Read an invitation: a URL with ``oob=`` or ``c_i=``, a JSON text, or its object.

    Raises:
        UnusableInvitation: the source is no invitation, or has no key and endpoint that this wallet
            understands.
    """
    message = source if isinstance(source, dict) else _object(source)
    kind = read_type(message.get("@type"))
    if kind is None or kind.family not in _FAMILIES or kind.name != "invitation":
        raise _of_another_type(message, "v1")
    invitation_id, label = message.get("@id"), message.get("label", "")
    if not isinstance(invitation_id, str) or not isinstance(label, str):
        raise UnusableInvitation("the invitation has no id, or a label that is no text")
    if kind.family == "connections":
        key, endpoint = _service(message)
        return Invitation(invitation_id, key, endpoint, ("connections/1.0",), label)
    key, endpoint = _first_service(message.get("services"))
    return Invitation(invitation_id, key, endpoint, tuple(_protocols(message)), label)


def read_invitation_2(source: str | bytes | Json) -> Invitation2:
    """Read an out-of-band 2.0 invitation: a URL with ``_oob=``, a JSON text, or its object.

    Raises:
        UnusableInvitation: the source is no such invitation.
    """
    message = source if isinstance(source, dict) else _object(source, _PARAMETERS_2)
    kind = read_type(message.get("type"))
    invitation_id, did = message.get("id"), message.get("from")
    if kind is None or (kind.family, kind.major, kind.name) != ("out-of-band", 2, "invitation"):
        raise _of_another_type(message, "v2")
    if not isinstance(invitation_id, str) or not isinstance(did, str):
        raise UnusableInvitation("the invitation has no id, or names no DID")
    return Invitation2(invitation_id, did)


def _of_another_type(message: Json, generation: str) -> UnusableInvitation:
    kind = message.get("@type", message.get("type"))
    return UnusableInvitation(f"type {kind!r} is no invitation of DIDComm {generation}")


async def fetch_invitation_2(session: aiohttp.ClientSession, url: str) -> Invitation2:
    """Get the out-of-band 2.0 invitation in a URL, in its redirection, or in its JSON answer.

    Raises: as ``fetch_invitation``.
    """
    return read_invitation_2(await _source(session, url, _PARAMETERS_2, follows=False))


async def fetch_invitation(session: aiohttp.ClientSession, url: str) -> Invitation:
    """Get the invitation in a URL, or fetch it from there.

    Raises:
        MediatorRefused, MediatorUnreachable: a short URL was not answered with an invitation.
        UnexpectedAnswer: the answer is longer than any invitation.
        UnusableInvitation: see ``read_invitation``.
    """
    return read_invitation(await _source(session, url, _PARAMETERS, follows=True))


async def _source(
    session: aiohttp.ClientSession, url: str, parameters: Sequence[str], *, follows: bool
) -> str | bytes:
    """A URL with an invitation in its query, else its answer, or its unfollowed redirection."""
    if any(name in _url(url).query for name in parameters):
        return url
    headers = {"Accept": "application/json"} if follows else None
    timeout = aiohttp.ClientTimeout(total=_SECONDS_MAX)
    try:
        async with session.get(
            _url(url), headers=headers, allow_redirects=follows, timeout=timeout
        ) as response:
            if not follows and (leads_to := response.headers.get("Location")) is not None:
                return leads_to
            body = await read_bounded(response, _BYTES_MAX)
            if response.status != _OK:
                raise refused(response, body)
            return body
    except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as error:
        raise MediatorUnreachable(f"{url}: {str(error) or type(error).__name__}") from error


def _url(text: str) -> URL:
    try:
        url = URL(text)
        host = url.host  # decoded only now: one of IDNA may be none
    except ValueError as error:
        raise UnusableInvitation(f"{text!r} is no URL: {error}") from error
    if url.scheme not in {"http", "https"} or not host:
        raise UnusableInvitation(f"{text!r} is not an http or https URL")
    return url


def _object(source: str | bytes, parameters: Sequence[str] = _PARAMETERS) -> Json:
    try:
        text = source.encode() if isinstance(source, str) else source
        if text.lstrip().startswith(b"{"):
            value = parse(text)
        else:
            query = URL(text.decode()).query
            (encoded,) = (query[name] for name in parameters if name in query)
            value = parse(b64decode(encoded))
    except (JsonRefused, ValueError) as error:
        raise UnusableInvitation(f"neither an invitation nor a URL with one: {error}") from error
    if not isinstance(value, dict):
        raise UnusableInvitation("the invitation is no JSON object")
    return value


def _protocols(message: Json) -> list[str]:
    """The offered handshakes without the prefix of their URIs."""
    offered = message.get("handshake_protocols", [])
    if not isinstance(offered, list):
        raise UnusableInvitation("handshake_protocols is no list")
    return ["/".join(item.split("/")[-2:]) for item in offered if isinstance(item, str)]


def _first_service(services: object) -> tuple[bytes, str]:
    """Key and endpoint of the first usable service: an object, or a DID that carries one."""
    for service in services if isinstance(services, list) else []:
        try:
            if isinstance(service, str):
                return _of_did(service)
            if isinstance(service, dict):
                return _service(service)
        except UnusableInvitation:
            continue
    raise UnusableInvitation("no service with an Ed25519 key and an endpoint")


def _of_did(did: str) -> tuple[bytes, str]:
    document = resolve(did)
    if document is None or not document.recipient_keys or not document.endpoint:
        raise UnusableInvitation(f"{did} has no key and endpoint in it")
    return _usable(document.recipient_keys[0]), document.endpoint


def _service(service: Mapping[str, object]) -> tuple[bytes, str]:
    keys, endpoint = service.get("recipientKeys"), service.get("serviceEndpoint")
    key = read_key(keys[0]) if isinstance(keys, list) and keys else None
    if key is None or not isinstance(endpoint, str) or not endpoint:
        raise UnusableInvitation("the service lacks an Ed25519 key or an endpoint")
    return _usable(key), endpoint


def _usable(key: bytes) -> bytes:
    """The key, if messages can be packed to it. Raises: UnusableInvitation."""
    if curve_public(key) is None:
        raise UnusableInvitation("nothing can be packed to the key of the service")
    return key
