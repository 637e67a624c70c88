"""Caps on everything that a client could make grow; see ``http_edge.settings.settings``."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from http_edge.settings.value_types import KIB, MIB, Section, at_most


class Limits(Section):
    """Caps on everything that a client could make grow."""

    body_bytes_max: int = Field(default=MIB, ge=KIB, le=16 * MIB)
    """Request body. Holds a message of 1 MiB less its envelope; each command in flight may need
    this much memory several times over."""
    head_bytes_max: int = Field(default=32 * KIB, ge=KIB, le=MIB)
    """Request line and all headers. Above it, or with more than 8 KiB and an eighth of a body that
    only frames its chunks, the connection is cut."""
    head_s_max: float = Field(default=15, gt=0, le=600)
    """Time for a new connection to send the head of its first request."""
    connections_max: int = Field(default=24_000, ge=16)
    """Connections of one edge process, WebSockets included: sockets_max and some thousands. Never
    more than the process may open files (ulimit -n) less 512. When there are so many, the longest
    idle of them are closed for newcomers; newcomers are refused when none is idle."""
    connections_per_address_max: int = Field(default=2_500, ge=1)
    """The same of one client address, or half of all where that is less: sockets_per_address_max
    and some hundreds. The proxies in rates.trusted_proxies may have any number."""
    header_bytes_max: int = Field(default=16 * KIB, ge=KIB, le=256 * KIB)
    """Request line, and each header field. Holds GET /public/ with the longest DID percent-encoded
    and a few tags."""
    bodies_bytes_max: int = Field(default=128 * MIB, ge=MIB)
    """Request bodies that one edge process holds at once, those that still arrive included. Beyond
    it the newest that arrives of the address that holds the most is cut, or the request is
    answered 503 with Retry-After. A command that is worked on needs this up to three times."""
    bodies_bytes_per_address_max: int = Field(default=32 * MIB, ge=KIB)
    """The same of one client address; above it 429. Thirty of the largest, or thousands of
    messages at once."""
    bodies_per_address_max: int = Field(default=256, ge=1, le=100_000)
    """Request bodies that one client address is sending at once; above it 429. Slow senders of
    bodies keep others out no longer."""
    body_read_s_max: float = Field(default=15, gt=0, le=600)
    """Time to receive a request body. A client that drips bytes holds a connection and a buffer
    this long, no longer."""
    answers_bytes_max: int = Field(default=128 * MIB, ge=MIB)
    """Bytes of answers and frames that the clients of one edge process have not read yet. Beyond
    it the address that holds the most of them loses its newest connection."""
    answers_bytes_per_address_max: int = Field(default=32 * MIB, ge=64 * KIB)
    """The same of one client address; a single answer may be larger. Clients that read at once
    hold nothing."""
    answer_write_s_max: float = Field(default=120, gt=0, le=3_600)
    """Time for a client to read an answer, or a frame of a WebSocket, then it is cut."""
    transfer_bytes_per_s_min: float = Field(default=KIB, ge=0, le=MIB)
    """A client that reads an answer or sends a body more slowly than this is cut. A fifth of what
    GPRS carries."""
    transfer_grace_s: float = Field(default=10, gt=0, le=600)
    """Time in which a transfer may stand still before transfer_bytes_per_s_min counts: a phone in
    a tunnel."""
    keepalive_s: float = Field(default=75, gt=0, le=3_600)
    """Idle connection, also the time to send the head of a request that is not the first. Longer
    than the 60 s of common proxies, so that the proxy closes first."""
    did_bytes_max: int = Field(default=2 * KIB, ge=256, le=64 * KIB)
    """One DID. A did:decentrl with an alias of 256 bytes needs about 800; DIDs are kept in caches
    and indexes."""
    page_size_max: int = Field(default=1_000, ge=1, le=100_000)
    """Largest page_size of a query; above it the command is refused, never clamped, because
    clients count on the size that they named."""
    page_size_default: int = Field(default=10, ge=1)
    """page_size of a query that names none."""
    public_page_size_max: int = Field(default=100, ge=1, le=10_000)
    """Largest page_size of GET /public, which strangers send."""
    page_bytes_max: int = Field(default=16 * MIB, ge=MIB, le=256 * MIB)
    """Bytes of a page, as its records are stored and as they are written in JSON; a larger one of
    more than one is refused with INVALID_COMMAND, never cut short, and a smaller page_size is
    needed. Holds ten of the largest messages, page_size_default, and a hundred of the largest
    public events."""
    reads_in_flight_max: int = Field(default=8, ge=1, le=10_000)
    """Reads of saved and public events that one edge process has under way; more wait. Each may be
    a page of page_bytes_max, and a host reads two at once."""
    pages_bytes_max: int = Field(default=64 * MIB, ge=MIB)
    """Bytes of pages of messages that one transaction answers beside the first; beyond, queries
    are answered TEMPORARILY_UNAVAILABLE."""
    ids_per_command_max: int = Field(default=1_000, ge=1, le=100_000)
    """Ids in one acknowledgement, update or deletion: one page at most."""
    queue_messages_max: int = Field(default=10_000, ge=1)
    """Messages waiting for one identity; the next is refused with RECIPIENT_QUEUE_FULL, none is
    dropped."""
    queue_bytes_max: int = Field(default=64 * MIB, ge=KIB)
    """Payload bytes waiting for one identity. One page of them is the most that is read at once."""
    queue_sender_share_max: float = Field(default=0.5, gt=0, le=1)
    """Part of a queue, in number and in bytes, that one sender fills, of the room for contracts
    that others send, and of the places for contract requests; a DIDComm sender is anonymous, so
    there it is one recipient key. One contact cannot keep all others out, and a large backup still
    finds half of the room."""
    contract_requests_max: int = Field(default=1_000, ge=1)
    """Contract requests waiting for one identity. Strangers may send these, so the cap is lower
    than that of messages."""
    contract_requests_bytes_max: int = Field(default=16 * MIB, ge=64 * KIB)
    """Bytes of contract requests waiting for one identity: five times what as many of the usual
    size take."""
    contracts_max: int = Field(default=10_000, ge=1)
    """Contracts that one identity stores: its contacts."""
    contracts_bytes_max: int = Field(default=64 * MIB, ge=64 * KIB)
    """Bytes of contracts that one identity stores. They stay when they have expired, unless
    retention says otherwise; contracts_max of the usual 2 KiB need a third."""
    saved_events_max: int = Field(default=5_000_000, ge=1)
    """Saved events of one identity; they stand in indexed tables, not in memory."""
    saved_events_bytes_max: int = Field(default=4_096 * MIB, ge=MIB)
    """Bytes of the saved events of one identity and of all tags that they ever got, with 256 for
    the row of each event and for the index rows of each tag: saved_events_max of them with 600
    bytes of text. Nothing of it is erased."""
    identity_bytes_max: int = Field(default=5_120 * MIB, ge=MIB)
    """Bytes of everything that one identity stores, what waits for it included; beyond, it stores
    no more itself. What others send it has the caps of its kind alone, so that a full history
    keeps no message out."""
    saved_events_per_command_max: int = Field(default=1_000, ge=1, le=100_000)
    """Events in one SAVE_EVENTS, stored all or none in one transaction that others wait for; or in
    one UPDATE_EVENT_TAGS, sixteen in a transaction: the first of them is refused or none, for a
    quota or the disk."""
    saved_event_bytes_max: int = Field(default=128 * KIB, ge=KIB, le=16 * MIB)
    """Payload of one saved event. A page of page_size_max of them stays at 128 MiB."""
    contract_bytes_max: int = Field(default=16 * KIB, ge=4 * KIB, le=MIB)
    """One signed contract, as canonical JSON. The two DIDs, keys and signatures need 2 KiB; one
    page holds page_size_max of them."""
    contract_request_bytes_max: int = Field(default=32 * KIB, ge=4 * KIB, le=MIB)
    """One encrypted contract request: a contract in base64. Strangers may send these."""
    tags_per_event_max: int = Field(default=64, ge=1, le=10_000)
    """Tags of one event; each is an index row."""
    tags_per_command_max: int = Field(default=1_000, ge=64, le=100_000)
    """Tags of all events in one command. Each is up to four index rows in one transaction, which
    others wait for: 1,000 take about 30 ms."""
    tags_per_query_max: int = Field(default=16, ge=1, le=1_000)
    """Tags that one query names: their lists are merged, beyond four by sorting."""
    id_bytes_max: int = Field(default=256, ge=64, le=4 * KIB)
    """The id of a saved event or of its contract, as a client names it; those of this mediator have
    up to 28 characters. It is kept with what it is about, beside what a quota counts."""
    tag_bytes_max: int = Field(default=KIB, ge=128, le=64 * KIB)
    """One tag. An encrypted tag is a signature in base64: 88 bytes."""
    public_events_max: int = Field(default=10_000, ge=1)
    """Public events of one identity; their ids stand in memory while it is active."""
    public_events_bytes_max: int = Field(default=128 * MIB, ge=MIB)
    """Bytes of the public events of one identity, counted as those of saved events:
    public_events_max of 12 KiB each. What is withdrawn does not count any more."""
    public_event_bytes_max: int = Field(default=64 * KIB, ge=KIB, le=64 * MIB)
    """Text of one public event. A page of ten stays below 1 MiB."""
    free_bytes_min: int = Field(default=512 * MIB, ge=0)
    """Free bytes of the disk of log.db below which only what frees some is taken, such as
    acknowledgements, and what reads; the rest is refused with INSUFFICIENT_STORAGE. At most a tenth
    of the disk; 0 is no floor. Of a PostgreSQL server nothing is known: watch its disk."""
    nonces_per_shard_max: int = Field(default=200_000, ge=1_000)
    """Nonces in force in one shard, about 100 bytes of memory each, of commands with a signature
    that holds. When full, commands are refused: forgetting a nonce would let a replay in. Half of
    it is for all; of the other half a sender may have a quarter of what stays free, and those that
    have nothing here count as one, so that some that claim all they can keep out no one."""
    unproven_nonces_max: int = Field(default=200_000, ge=1_000)
    """Nonces of commands without effect that one host remembers, about 150 bytes of memory each:
    their signature did not hold, or nothing here knows their sender. The oldest make room, so junk
    fills neither log nor shard, and what it pushes out had no effect."""
    sockets_max: int = Field(default=20_000, ge=1)
    """Open WebSockets of one edge process; needs as many files."""
    sockets_per_identity_max: int = Field(default=32, ge=1)
    """Open WebSockets of one identity: its devices and tabs."""
    sockets_per_address_max: int = Field(default=2_000, ge=1)
    """Open WebSockets of one client address: a tenth of all, so that no single stranger takes all
    places. One address may be that of a whole campus."""
    socket_frame_bytes_max: int = Field(default=64 * KIB, ge=4 * KIB, le=4 * MIB)
    """One incoming WebSocket message. Clients send AUTHENTICATE and PONG only."""
    socket_frames_per_s_max: float = Field(default=20, gt=0, le=10_000)
    """Incoming messages of one WebSocket, with two seconds of burst. A client owes one PONG per
    ping_interval_s; more only costs parsing."""
    socket_buffer_bytes_max: int = Field(default=4 * MIB, ge=64 * KIB)
    """Bytes waiting for one slow WebSocket reader before it is closed. Nothing is lost: its
    messages wait in the queue. Holds four of the largest."""
    commands_in_flight_max: int = Field(default=4_096, ge=1)
    """Commands that one edge process works on at once; above it 503 with Retry-After. At 5,000/s
    this is under one second of work."""
    outbox_items_max: int = Field(default=8_192, ge=1)
    """Items that wait for one host. Twice the commands in flight, so that the sessions of sockets
    find room too."""
    batch_items_max: int = Field(default=256, ge=1, le=10_000)
    """Items in one call to a host, hence in one transaction."""
    batch_bytes_max: int = Field(default=MIB, ge=KIB, le=3 * MIB)
    """Bytes in one call to a host; a larger command travels alone. Below the 4 MiB up to which Ray
    carries arguments inside the call."""
    transaction_work_max: int = Field(default=1_024, ge=1, le=100_000)
    """Work of one transaction of a host, from all calls that wait, where 1 is a message of 1 KiB.
    More share one sync of the disk, and wait for the slowest among them: 1,024 take 70 ms."""
    costly_work_max: int = Field(default=400, ge=1, le=100_000)
    """Work of one transaction of commands that cost more than 16 of these each, but one such
    command at least: 400 take 30 ms. All others wait for it that long, and it takes half of the
    time at most while others wait."""
    gather_s_max: float = Field(default=0.02, ge=0, le=1)
    """Time that a transaction in PostgreSQL waits at most for more commands when several came
    lately: as long as the last one took, and no longer than this; one client alone never waits. A
    commit costs host and server 1.5 ms of CPU together, so that two nodes with small transactions
    each would carry less than one. SQLite has no use for it."""
    host_call_s_max: float = Field(default=30, gt=0, le=600)
    """Time for a host to answer, then the outcome is unknown to the client. Covers the restart of
    a host with its shards."""
    host_lease_s: float = Field(default=4, ge=2, le=60)
    """Time of the lease that a host, and the placer, renew four times as often in the database of
    the log. A host that cannot stops serving before it is over, then its shards are given to
    others; so they are when it has left the placer without an answer for so long. Longer takes a
    lost machine longer, shorter lets a slow database pass for a lost one."""
    clock_off_s_max: float = Field(default=5, ge=0, le=3_600)
    """By how much the clock of this machine may differ from that of PostgreSQL: with more a node
    does not start, and one that drifts says so in its log. 0 is any: the times of events, and what
    leaves for its age, are by the clock of the host."""
    move_wait_s_max: float = Field(default=10, gt=0, le=600)
    """Time that a command waits for its shard to have an owner again, or for its host to be there
    again, then 503. A planned move takes a fraction of a second, the start of a host and the loss
    of a node several."""
    dedicated_max: int = Field(default=64, ge=0, le=4_096)
    """Identities of a cluster that may have a dedicated host: a process of 60 MB each."""
    dedicate_above_commands_per_s: float = Field(default=0, ge=0)
    """An identity of a cluster that gets more commands than this for seconds gets a dedicated
    host. 0 is never: any client that may write to an identity can make it busy, so that processes
    start for strangers is for the operator to decide. A host takes some thousand a second."""
    dedicated_quiet_s: float = Field(default=60, ge=10, le=86_400)
    """An identity that got its dedicated host for its load goes back to its shard after less than
    a quarter of that load for so long, and stays there for as long again, also when an operator
    released it. Hosts count for 3 s at a time."""
    drain_s_max: float = Field(default=8, ge=0, le=600)
    """Time to finish commands after SIGTERM. Below the 10 s that Docker waits."""
    active_identities_max: int = Field(default=20_000, ge=1)
    """Identities that one host keeps in memory; the longest idle one leaves."""
    active_bytes_max: int = Field(default=256 * MIB, ge=MIB)
    """Bytes of identities that one host keeps in memory, about 0.4 KiB for each waiting message:
    the payloads stay in the log."""
    identity_idle_s: float = Field(default=300, gt=0)
    """An identity without commands leaves memory after this; it returns from its snapshot with the
    next command."""
    snapshot_after_events: int = Field(default=200, ge=1)
    """Events of an identity after its last snapshot that make a new one worth its cost: the most
    that a load replays, about."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        at_most(self, "page_size_default", "page_size_max")
        at_most(self, "body_bytes_max", "queue_bytes_max")
        at_most(self, "body_bytes_max", "bodies_bytes_per_address_max")
        at_most(self, "body_bytes_max", "socket_buffer_bytes_max")
        at_most(self, "socket_buffer_bytes_max", "answers_bytes_per_address_max")
        at_most(self, "answers_bytes_per_address_max", "answers_bytes_max")
        at_most(self, "sockets_per_identity_max", "sockets_max")
        at_most(self, "header_bytes_max", "head_bytes_max")
        at_most(self, "batch_items_max", "outbox_items_max")
        return self
