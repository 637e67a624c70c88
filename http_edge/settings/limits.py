"""Caps on everything that a client could make grow; see ``http_edge.settings.settings``."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from eventstore.log.host_leases import LEASE_S_MAX
from http_edge.settings.value_types import (
    COUNT_MAX,
    KIB,
    MIB,
    Duration,
    Section,
    at_most,
    contradiction,
)


class Limits(Section):
    """Caps on everything that a client could make grow."""

    body_bytes_max: int = Field(default=MIB, ge=64 * KIB, le=16 * MIB)
    """Size of a request body. Holds a message of 1 MiB less its envelope; each command in flight
    may need several times this much memory. A registration needs 2 KiB or more; at 64 KiB, poste
    demo didcomm still passes."""
    head_bytes_max: int = Field(default=32 * KIB, ge=KIB, le=MIB)
    """Size of the request line and all headers together, without the last read, of up to 16 KiB,
    that completes them. A larger head is answered 400. More than 8 KiB plus an eighth of the body
    for chunk framing cuts the connection."""
    head_s_max: Duration = Field(default=15, le=600)
    """Time for a new connection to send the head of its first request."""
    connections_max: int = Field(default=24_000, ge=16, le=COUNT_MAX)
    """Connections of one edge process, WebSockets included: sockets_max plus some thousands. Never
    more than the limit of open files of the process (ulimit -n) less 512. At the limit, a new
    connection replaces the one that has been idle longest, and is refused if none is idle or none
    was within the last 50 ms."""
    connections_per_address_max: int = Field(default=2_500, ge=1, le=COUNT_MAX)
    """As connections_max, for one client address, or half of all where that is less:
    sockets_per_address_max plus some hundreds. The proxies in rates.trusted_proxies may have any
    number."""
    header_bytes_max: int = Field(default=16 * KIB, ge=KIB, le=256 * KIB)
    """Size of the target in the request line, and of the value of each header field; above it 400.
    Holds GET /public/ with the longest DID, percent-encoded, and a few tags."""
    bodies_bytes_max: int = Field(default=128 * MIB, ge=MIB, le=COUNT_MAX)
    """Bytes of request bodies and messages of WebSockets that one edge process holds at once,
    incomplete ones included. Beyond this, the edge cuts the newest incomplete body, or the newest
    WebSocket, of the address that holds the most, or answers the request 503 with Retry-After. A
    command in progress needs up to three times its body."""
    bodies_bytes_per_address_max: int = Field(default=32 * MIB, ge=KIB, le=COUNT_MAX)
    """As bodies_bytes_max, for one client address; above it 429. Holds thirty of the largest
    messages, or thousands of usual ones."""
    bodies_per_address_max: int = Field(default=256, ge=1, le=100_000)
    """Request bodies that one client address sends at once; above it 429. Keeps clients that send
    slowly from blocking others."""
    body_read_s_max: Duration = Field(default=15, le=600)
    """Time to receive a request body. A client that drips bytes holds a connection and a buffer no
    longer than this."""
    answers_bytes_max: int = Field(default=128 * MIB, ge=MIB, le=COUNT_MAX)
    """Bytes of answers and frames that the clients of one edge process have not read yet. Beyond
    this, the address that holds the most loses its newest connection."""
    answers_bytes_per_address_max: int = Field(default=32 * MIB, ge=64 * KIB, le=COUNT_MAX)
    """As answers_bytes_max, for one client address; a single answer may be larger. Clients that
    read at once hold nothing."""
    answer_write_s_max: Duration = Field(default=120, le=3_600)
    """Time for a client to read an answer, each piece of a large one, or a WebSocket frame; after
    this the connection is cut."""
    transfer_bytes_per_s_min: float = Field(default=KIB, ge=0, le=MIB)
    """The edge cuts a client that reads an answer or sends a body more slowly than this. A fifth of
    the rate of GPRS."""
    transfer_grace_s: Duration = Field(default=10, le=600)
    """Time that a transfer may stall before transfer_bytes_per_s_min applies, as for a phone in a
    tunnel."""
    keepalive_s: Duration = Field(default=75, le=3_600)
    """Time that a connection may be idle between requests, the head of the next request included.
    Longer than the 60 s of common proxies, so that the proxy closes first."""
    did_bytes_max: int = Field(default=2 * KIB, ge=256, le=64 * KIB)
    """One DID. A did:decentrl with an alias of 256 bytes needs about 800; DIDs are kept in caches
    and indexes. With a log in PostgreSQL at most 2,600 in a cluster and where identities are
    dedicated, unless dedicated_max is 0: the names of their hosts have the DIDs."""
    page_size_max: int = Field(default=1_000, ge=1, le=100_000)
    """Largest page_size of a query. A larger one is refused, never reduced, because clients rely on
    the size that they asked for."""
    page_size_default: int = Field(default=10, ge=1, le=COUNT_MAX)
    """page_size of a query that does not set one."""
    public_page_size_max: int = Field(default=100, ge=1, le=10_000)
    """Largest page_size of GET /public, which strangers send; at least page_size_default."""
    page_bytes_max: int = Field(default=16 * MIB, ge=MIB, le=256 * MIB)
    """Bytes of a page, both as stored and as JSON. A larger page of several records is refused with
    INVALID_COMMAND, never cut short; the client has to ask for a smaller page_size. Holds ten of
    the largest messages, page_size_default, and a hundred of the largest public events."""
    reads_in_flight_max: int = Field(default=7, ge=2, le=10_000)
    """Reads of saved and public events, and of large pages of messages, in progress in one edge
    process; further reads wait. Each may be a page of page_bytes_max. A host serves two at once and
    gets no more, one more of saved events, and those that last longer than 5 s do not count: a host
    that hangs delays no reads at others. Those of saved events take half of the slots at most."""
    pages_bytes_max: int = Field(default=64 * MIB, ge=MIB, le=COUNT_MAX)
    """Bytes of the pages that one transaction reads, of which the first may be larger; queries
    beyond this are answered TEMPORARILY_UNAVAILABLE. Large pages of messages beyond 1 MiB do not
    count: they are read by themselves."""
    ids_per_command_max: int = Field(default=1_000, ge=1, le=100_000)
    """Ids in one acknowledgement or deletion: at most one page."""
    queue_messages_max: int = Field(default=10_000, ge=1, le=COUNT_MAX)
    """Messages waiting for one identity. The next one is refused with RECIPIENT_QUEUE_FULL; none is
    dropped."""
    queue_bytes_max: int = Field(default=64 * MIB, ge=KIB, le=COUNT_MAX)
    """Payload bytes waiting for one identity. A single read returns at most one page of them."""
    queue_sender_share_max: float = Field(default=0.5, gt=0, le=1)
    """Part of a queue that one sender may fill, in messages and in bytes. It applies also to the
    room for contracts that others send, and to contract requests. A DIDComm sender is anonymous, so
    there the part is that of one recipient key. One contact cannot shut out all others, yet a large
    backup still gets half of the room."""
    contract_requests_max: int = Field(default=1_000, ge=1, le=COUNT_MAX)
    """Contract requests waiting for one identity. Lower than the cap on messages, because strangers
    may send these."""
    contract_requests_bytes_max: int = Field(default=16 * MIB, ge=64 * KIB, le=COUNT_MAX)
    """Bytes of contract requests waiting for one identity: five times what contract_requests_max of
    the usual size take."""
    contracts_max: int = Field(default=10_000, ge=1, le=COUNT_MAX)
    """Contracts that one identity stores: its contacts."""
    contracts_bytes_max: int = Field(default=64 * MIB, ge=64 * KIB, le=COUNT_MAX)
    """Bytes of contracts that one identity stores. Expired contracts count too, until retention
    removes them; contracts_max of the usual 2 KiB need a third of this."""
    saved_events_max: int = Field(default=5_000_000, ge=1, le=COUNT_MAX)
    """Saved events of one identity. They are in indexed tables, not in memory."""
    saved_events_bytes_max: int = Field(default=4_096 * MIB, ge=MIB, le=COUNT_MAX)
    """Bytes of the saved events of one identity and of all tags that they ever had, plus 256 for
    the row of each event and for the index rows of each tag: saved_events_max with 600 bytes of
    text each. Retention never erases them."""
    identity_bytes_max: int = Field(default=5_120 * MIB, ge=MIB, le=COUNT_MAX)
    """Bytes of everything that one identity stores, its waiting messages included. Beyond this, the
    identity itself can store no more. Items from others are subject only to the caps of their kind,
    so a full history never blocks a message."""
    saved_events_per_command_max: int = Field(default=1_000, ge=1, le=100_000)
    """Events in one SAVE_EVENTS, stored all or none in one transaction, for which other clients
    wait; also in one UPDATE_EVENT_TAGS, which stores sixteen per transaction: a quota or a full
    disk can refuse only the first of these."""
    saved_event_bytes_max: int = Field(default=128 * KIB, ge=KIB, le=16 * MIB)
    """Payload of one saved event. page_bytes_max holds a hundred of the largest."""
    contract_bytes_max: int = Field(default=16 * KIB, ge=4 * KIB, le=MIB)
    """One signed contract, as canonical JSON. The two DIDs, keys and signatures need 2 KiB; one
    page holds page_size_max of that size."""
    contract_request_bytes_max: int = Field(default=32 * KIB, ge=4 * KIB, le=MIB)
    """One encrypted contract request: a contract in base64. Bounded because strangers may send
    these."""
    tags_per_event_max: int = Field(default=64, ge=1, le=10_000)
    """Tags of one event; each is an index row."""
    tags_per_command_max: int = Field(default=1_000, ge=64, le=100_000)
    """Tags of all events in one command. Each is up to four index rows in one transaction, for
    which other clients wait: 1,000 take about 30 ms."""
    tags_per_query_max: int = Field(default=16, ge=1, le=1_000)
    """Tags in one query. The mediator merges their lists; more than four lists need sorting. After
    a query that costs more than burst_s of per_sender_per_s its owner can make none for a while: 75
    s if a million events match any of 16 tags."""
    id_bytes_max: int = Field(default=256, ge=64, le=4 * KIB)
    """The id of a saved event or of its contract, as the client chose it; ids of this mediator have
    up to 28 characters. It is stored with its record and does not count towards a quota."""
    tag_bytes_max: int = Field(default=KIB, ge=128, le=64 * KIB)
    """One tag, and the channel_id of a public event. An encrypted tag is a signature in base64: 88
    bytes."""
    public_events_max: int = Field(default=10_000, ge=1, le=COUNT_MAX)
    """Public events of one identity. Their ids are in memory while the identity is active."""
    public_events_bytes_max: int = Field(default=128 * MIB, ge=MIB, le=COUNT_MAX)
    """Bytes of the public events of one identity, counted like those of saved events:
    public_events_max of 12 KiB each. A withdrawn event no longer counts."""
    public_event_bytes_max: int = Field(default=64 * KIB, ge=KIB, le=64 * MIB)
    """Text of one public event. A page of ten stays below 1 MiB."""
    free_bytes_min: int = Field(default=512 * MIB, ge=0, le=COUNT_MAX)
    """Minimum of free bytes on the disk of log.db. Below it a host accepts only reads and commands
    that store next to nothing, such as acknowledgements; all others are refused with
    INSUFFICIENT_STORAGE. The minimum is at most a tenth of the disk; 0 disables it. The disk of a
    PostgreSQL server is not visible to Poste: monitor it yourself."""
    nonces_per_shard_max: int = Field(default=200_000, ge=1_000, le=COUNT_MAX)
    """Nonces in force in one shard, of commands with a valid signature; about 100 bytes of memory
    each. When the shard is full, commands are refused: to forget a nonce would allow a replay. The
    first half is open to all senders. Of the second half, one sender may use a quarter of what is
    free; all senders that are unknown here count as one. So a few greedy senders cannot shut out
    the others."""
    unproven_nonces_max: int = Field(default=200_000, ge=1_000, le=COUNT_MAX)
    """Nonces of commands without effect that one host remembers, about 150 bytes of memory each:
    the signature was invalid or the sender is unknown here. New ones replace the oldest, so junk
    fills neither the log nor a shard, and a forgotten nonce belonged to a command without
    effect."""
    sockets_max: int = Field(default=20_000, ge=1, le=COUNT_MAX)
    """Open WebSockets of one edge process; each needs an open file."""
    sockets_per_identity_max: int = Field(default=32, ge=1, le=COUNT_MAX)
    """Open WebSockets of one identity in one edge process: its devices and tabs."""
    sockets_per_address_max: int = Field(default=2_000, ge=1, le=COUNT_MAX)
    """As sockets_max, for one client address: a tenth of it, so that no single stranger takes them
    all. One address may be that of a whole campus."""
    socket_frame_bytes_max: int = Field(default=64 * KIB, ge=4 * KIB, le=4 * MIB)
    """One incoming WebSocket message. Clients send AUTHENTICATE and PONG only."""
    socket_frames_per_s_max: float = Field(default=20, gt=0, le=10_000)
    """Incoming messages of one WebSocket, with a burst of two seconds. A client owes one PONG per
    ping_interval_s; more only costs parsing."""
    socket_buffer_bytes_max: int = Field(default=4 * MIB, ge=64 * KIB, le=COUNT_MAX)
    """Bytes waiting for one slow WebSocket reader before its socket is closed. Nothing is lost: the
    messages wait in the queue. Holds four of the largest; one message may be larger if it was
    accepted before this was lowered."""
    commands_in_flight_max: int = Field(default=4_096, ge=1, le=COUNT_MAX)
    """Commands in progress in one edge process; above it 503 with Retry-After. At 5,000/s this is
    less than a second of work. One client address with a rate takes a quarter of those that stay
    free: alone 820, above which 429. Half of them at most wait for the owner of a shard that has
    none, so that the other shards are served; with several hosts, less than half for those that
    have not answered for 2 s, and of reads of pages a quarter at most for each host."""
    outbox_items_max: int = Field(default=8_192, ge=1, le=COUNT_MAX)
    """Items that wait for one host, and by themselves the sessions of sockets that wait for any
    shard's owner; a client whose session does not fit connects again."""
    batch_items_max: int = Field(default=256, ge=1, le=10_000)
    """Items in one call to a host, which answers them together, and their work; 1 is a message of
    1 KiB, as for transaction_work_max. One client address gets a quarter of the work. One
    transaction may take several calls, or a part of one."""
    batch_bytes_max: int = Field(default=MIB, ge=KIB, le=3 * MIB)
    """Bytes in one call to a host; a larger command travels alone. A host reads a call whole before
    the next one of the same edge, so a larger one delays those behind it and takes more memory."""
    transaction_work_max: int = Field(default=1_024, ge=1, le=100_000)
    """Work of one transaction of a host, taken from all waiting calls; 1 is a message of 1 KiB. In
    larger transactions more commands share one disk sync, but all wait for the slowest: 1,024 take
    70 ms."""
    costly_work_max: int = Field(default=400, ge=1, le=100_000)
    """Work in one transaction of commands that cost more than 16 units each, but always at least
    one such command: 400 take 30 ms. All other commands wait that long; while they wait, costly
    commands take at most half of the time."""
    commit_delay_s_max: float = Field(
        default=0.02, ge=0, le=1, json_schema_extra={"former_name": "limits.gather_s_max"}
    )
    """Longest time that a PostgreSQL transaction waits for more commands when several came
    recently. It waits as long as the last transaction took, up to this; a single client never
    waits. A commit costs host and server 1.5 ms of CPU together, so two nodes with small
    transactions each would carry less than one. SQLite does not use it."""
    host_call_s_max: Duration = Field(default=30, le=600)
    """Time for a host to answer; after this the outcome is unknown to the client. Covers the
    restart of a host with its shards."""
    host_lease_s: float = Field(default=4, ge=2, le=LEASE_S_MAX)
    """Duration of the lease that each host, and the placer, has in the database of the log and
    renews four times as often. A host that cannot renew stops serving before the lease ends; then
    other hosts get its shards. The same happens if it does not answer the placer for this long. A
    longer lease delays recovery from a lost machine; with a shorter one, a slow database looks like
    a lost machine: it has to answer within a quarter of this time, at least a second, and to accept
    a connection within half of it."""
    process_silent_s_max: float = Field(default=30, ge=5, le=3_600)
    """A host or an edge that has not answered the main process for this long hangs: it is killed
    and started again, and nothing that was accepted is lost. The answer waits for no log, disk or
    client, and took less than a second under hostile load; the default leaves room for a machine
    that is short of memory or whose disk stalls. A process in a debugger needs more."""
    clock_off_s_max: float = Field(default=5, ge=0, le=3_600)
    """Largest difference between the clock of this machine and that of PostgreSQL. A node with a
    larger one does not start; a running node logs a warning. 0 disables the check. The host's clock
    sets the times of events and decides when retention removes something. In a cluster with
    export.to: more than 0, and so small that export.settled_s has room for twice that."""
    move_wait_s_max: Duration = Field(default=10, le=600)
    """Time that a command waits until its shard has an owner or its host has returned; then 503. A
    planned move takes a fraction of a second; the start of a host or the loss of a node takes
    several seconds."""
    dedicated_max: int = Field(default=64, ge=0, le=4_096)
    """Identities that may have a dedicated host, which is a process of 60 MB. Each of several
    databases may have its even part of them; if that is no whole number, the first ones have one
    more. 0 for none; fewer than there are databases, or in dedicated_dids, are refused."""
    dedicate_above_commands_per_s: float = Field(default=0, ge=0)
    """An identity that gets more commands than this for some seconds gets a dedicated host; with
    placement dedicated any command is enough. 0 disables this: any client that may write to an
    identity can make it busy, so the operator has to decide whether strangers can start processes.
    A host handles some thousand commands a second."""
    dedicated_quiet_s: float = Field(default=60, ge=10, le=86_400)
    """An identity that got its dedicated host because of its load returns to its shard when it has
    had less than a quarter of dedicate_above_commands_per_s for this long. It then stays in the
    shard for as long again, also if an operator released it. Hosts count commands over 3 s."""
    drain_s_max: float = Field(default=8, ge=0, le=600)
    """Time to finish commands after SIGTERM. Less than the 10 s that Docker waits. A node of a
    cluster first hands over its shards, in half of this time at most. The unit, the compose file
    and the chart kill it 60 s after SIGTERM: with more than 40 raise TimeoutStopSec,
    stop_grace_period or terminationGracePeriodSeconds as well."""
    active_identities_max: int = Field(default=20_000, ge=1, le=COUNT_MAX)
    """Identities that one host keeps in memory; it drops the one that has been idle longest."""
    active_bytes_max: int = Field(default=256 * MIB, ge=MIB, le=COUNT_MAX)
    """Bytes of identities that one host keeps in memory, about 0.4 KiB for each waiting message,
    and each name once; payloads stay in the log. One transaction loads a sixteenth of it, and the
    last of its identities may exceed that."""
    identity_idle_s: Duration = Field(default=300, le=3_153_600_000)
    """An identity without commands leaves memory after this; its next command loads it from its
    snapshot."""
    snapshot_after_events: int = Field(default=200, ge=1, le=COUNT_MAX)
    """Events of an identity since its last snapshot after which a new one is worth its cost: about
    the most that a load replays."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        at_most(self, "page_size_default", "page_size_max")
        at_most(self, "page_size_default", "public_page_size_max")
        at_most(self, "body_bytes_max", "queue_bytes_max")
        at_most(self, "body_bytes_max", "bodies_bytes_max")
        at_most(self, "body_bytes_max", "bodies_bytes_per_address_max")
        at_most(self, "body_bytes_max", "socket_buffer_bytes_max")
        at_most(self, "socket_buffer_bytes_max", "answers_bytes_per_address_max")
        at_most(self, "answers_bytes_per_address_max", "answers_bytes_max")
        at_most(self, "sockets_per_identity_max", "sockets_max")
        at_most(self, "header_bytes_max", "head_bytes_max")
        at_most(self, "batch_items_max", "outbox_items_max")
        for kind in ("contract", "contract_request", "saved_event", "public_event"):
            at_most(self, f"{kind}_bytes_max", f"{kind}s_bytes_max")
        if 3 * self.did_bytes_max > self.header_bytes_max:  # percent-encoded
            raise contradiction("did_bytes_max", "header_bytes_max", 3)
        return self
