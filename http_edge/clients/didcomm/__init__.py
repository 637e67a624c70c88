"""A wallet for DIDComm mediation: an agent's requests to its mediator, in Python.

``Wallet`` speaks DIDComm v1, as an Aries agent does; ``Wallet2`` speaks DIDComm v2.

    async with aiohttp.ClientSession() as session:
        bob = await Wallet.connect("http://127.0.0.1:8080/invitation", session=session)
        key = await bob.new_recipient()

        address = key.address  # what Bob gives to Alice; she needs no wallet to write to him
        message = {"@type": "https://didcomm.org/basicmessage/1.0/message", "@id": "1"}
        await send(session, address.endpoint, address.seal({**message, "content": "hello"}))

        async for picked in bob.drain():
            print(key.unpack(picked.envelope).message["content"])

``Wallet`` speaks both handshakes, coordinate mediation, Pickup 1.0 and 2.0 with live mode, Aries
queue 1.0 and implicit pickup, over HTTP and over WebSocket (``bob.over(socket)``). It stores
nothing: the caller stores ``bob.connection`` and the ``seed`` of each key, from which
``KeyPair.from_seed`` makes the key again. Of the server it uses only the wire forms of
``http_edge.didcomm``.
"""

from http_edge.clients.didcomm.connected_wallet import Disclosure, PushDevice
from http_edge.clients.didcomm.connection import (
    Connection,
    Connection2,
    DidMethod2,
    Key,
    MediatorConnection,
    Opened,
    Received,
)
from http_edge.clients.didcomm.errors import (
    ConnectionLost,
    MediatorRefused,
    MediatorUnreachable,
    NoAnswer,
    NotAuthentic,
    ProblemReported,
    UnexpectedAnswer,
    UnusableInvitation,
    WalletError,
)
from http_edge.clients.didcomm.handshake import DidMethod, Handshake, HandshakeProtocol
from http_edge.clients.didcomm.invitation import (
    Invitation,
    Invitation2,
    fetch_invitation,
    fetch_invitation_2,
    read_invitation,
    read_invitation_2,
)
from http_edge.clients.didcomm.mediation import (
    MEDIATION_2,
    MEDIATION_3,
    Keylist,
    KeylistKey,
    KeylistResult,
    Mediation,
    MediationVersion,
    Pagination,
    RecipientList,
    RecipientResult,
)
from http_edge.clients.didcomm.older_pickup import Fetched, Pickup1Status, QueueStatus
from http_edge.clients.didcomm.pickup import (
    PICKUP_2,
    PICKUP_3,
    PICKUP_4,
    Live,
    Picked,
    PickupVersion,
    Status,
)
from http_edge.clients.didcomm.recipients import (
    Address,
    Recipient,
    Recipient2,
    endpoint_of,
    forward,
    forward_2,
    send,
)
from http_edge.clients.didcomm.transport import Posted, Socket, Transport, open_socket, post
from http_edge.clients.didcomm.wallet import Wallet, Wallet2
from http_edge.didcomm.envelopes.keys import KeyPair

__all__ = [
    "MEDIATION_2",
    "MEDIATION_3",
    "PICKUP_2",
    "PICKUP_3",
    "PICKUP_4",
    "Address",
    "Connection",
    "Connection2",
    "ConnectionLost",
    "DidMethod",
    "DidMethod2",
    "Disclosure",
    "Fetched",
    "Handshake",
    "HandshakeProtocol",
    "Invitation",
    "Invitation2",
    "Key",
    "KeyPair",
    "Keylist",
    "KeylistKey",
    "KeylistResult",
    "Live",
    "Mediation",
    "MediationVersion",
    "MediatorConnection",
    "MediatorRefused",
    "MediatorUnreachable",
    "NoAnswer",
    "NotAuthentic",
    "Opened",
    "Pagination",
    "Picked",
    "Pickup1Status",
    "PickupVersion",
    "Posted",
    "ProblemReported",
    "PushDevice",
    "QueueStatus",
    "Received",
    "Recipient",
    "Recipient2",
    "RecipientList",
    "RecipientResult",
    "Socket",
    "Status",
    "Transport",
    "UnexpectedAnswer",
    "UnusableInvitation",
    "Wallet",
    "Wallet2",
    "WalletError",
    "endpoint_of",
    "fetch_invitation",
    "fetch_invitation_2",
    "forward",
    "forward_2",
    "open_socket",
    "post",
    "read_invitation",
    "read_invitation_2",
    "send",
]
