"""The whole configuration: one frozen tree of typed settings, each with its unit and its reason.

``http_edge.config_sources.load_settings`` makes it once from defaults, file, environment and
command line; from then on it is a value: it pickles, it is JSON (``model_dump_json``), and
nothing reads the environment again. Every count, size and time that the program bounds stands
here; the reference (``poste config reference``) is generated from these fields.

Units stand last in a name: ``_bytes``, ``_s`` (seconds), ``_ms``, ``_per_s``; ``_max`` marks a cap.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote

from pydantic import Field, IPvAnyNetwork, model_validator
from pydantic_core import PydanticCustomError

from http_edge.config_audit import Audit
from http_edge.config_didcomm import DidComm, Outbound
from http_edge.config_export import Export
from http_edge.config_postgres import Postgres
from http_edge.config_types import (
    KIB,
    MIB,
    WILDCARDS,
    Did,
    Listen,
    LogAddress,
    NodeName,
    Origin,
    Section,
    Url,
    at_most,
    did_web,
    split_listen,
)

__all__ = [
    "Audit",
    "DidComm",
    "DidWeb",
    "Export",
    "Limits",
    "Outbound",
    "Postgres",
    "Protocol",
    "Rates",
    "Section",
    "Settings",
    "did_web",
    "split_listen",
]


class Limits(Section):
    """Caps on everything that somebody else could make grow."""

    body_bytes_max: int = Field(default=MIB, ge=KIB, le=16 * MIB)
    """Request body. Holds a message of 1 MiB less its envelope; each command in flight may need
    this much memory several times over."""
    header_bytes_max: int = Field(default=16 * KIB, ge=KIB, le=256 * KIB)
    """Request line, and each header field. Holds GET /public/ with the longest DID percent-encoded
    and a few tags."""
    bodies_bytes_max: int = Field(default=256 * MIB, ge=MIB)
    """Request bodies that one edge process holds at once; above it 503 with Retry-After. Without
    it, commands_in_flight_max bodies of body_bytes_max would fill 4 GiB."""
    bodies_per_address_max: int = Field(default=256, ge=1, le=100_000)
    """Request bodies that one client address is sending at once; above it 429. Slow senders of
    bodies keep others out no longer."""
    body_read_s_max: float = Field(default=15, gt=0, le=600)
    """Time to receive a request body. A client that drips bytes holds a connection and a buffer
    this long, no longer."""
    keepalive_s: float = Field(default=75, gt=0, le=3_600)
    """Idle connection, also the time to send the first header. Longer than the 60 s of common
    proxies, so that the proxy closes first."""
    did_bytes_max: int = Field(default=2 * KIB, ge=256, le=64 * KIB)
    """One DID. A did:decentrl with an alias of 256 bytes needs about 800; DIDs are kept in caches
    and indexes."""
    page_size_max: int = Field(default=1_000, ge=1, le=100_000)
    """Largest page_size of a query; above it the command is refused, never clamped, because
    clients count on the size they asked for."""
    page_size_default: int = Field(default=10, ge=1)
    """page_size of a query that names none."""
    public_page_size_max: int = Field(default=100, ge=1, le=10_000)
    """Largest page_size of GET /public, which strangers send."""
    reads_in_flight_max: int = Field(default=32, ge=1, le=10_000)
    """Reads of saved and public events that one edge process has under way; more wait. Each may be
    a page of megabytes."""
    pages_bytes_max: int = Field(default=64 * MIB, ge=MIB)
    """Bytes of pages of messages that one transaction answers beside the first; beyond, queries
    are answered TEMPORARILY_UNAVAILABLE."""
    ids_per_command_max: int = Field(default=1_000, ge=1, le=100_000)
    """Ids in one acknowledgement, update or deletion: one page at most."""
    queue_messages_max: int = Field(default=10_000, ge=1)
    """Messages waiting for one identity; the next is refused with RECIPIENT_QUEUE_FULL, none is
    dropped."""
    queue_bytes_max: int = Field(default=64 * MIB, ge=KIB)
    """Payload bytes waiting for one identity. They stay in the log; one page of them is the most
    that is read at once."""
    contract_requests_max: int = Field(default=1_000, ge=1)
    """Contract requests waiting for one identity. Strangers may send these, so the cap is lower
    than that of messages."""
    contracts_max: int = Field(default=10_000, ge=1)
    """Contracts that one identity stores: its contacts."""
    saved_events_max: int = Field(default=5_000_000, ge=1)
    """Saved events of one identity; they stand in indexed tables, not in memory."""
    saved_events_per_command_max: int = Field(default=1_000, ge=1, le=100_000)
    """Events in one SAVE_EVENTS or UPDATE_EVENT_TAGS: stored all or none in one transaction, which
    others wait for."""
    saved_event_bytes_max: int = Field(default=128 * KIB, ge=KIB, le=16 * MIB)
    """Payload of one saved event. A page of page_size_max of them stays at 128 MiB."""
    contract_bytes_max: int = Field(default=16 * KIB, ge=4 * KIB, le=MIB)
    """One signed contract, as canonical JSON. The two DIDs, keys and signatures need 2 KiB; one
    page holds page_size_max of them."""
    contract_request_bytes_max: int = Field(default=32 * KIB, ge=4 * KIB, le=MIB)
    """One encrypted contract request: a contract in base64. Strangers may send these."""
    tags_per_event_max: int = Field(default=64, ge=1, le=10_000)
    """Tags of one event; each is an index row."""
    tags_per_command_max: int = Field(default=4_000, ge=64, le=100_000)
    """Tags of all events in one command. Each is up to four index rows in the transaction that
    everybody waits for: 4,000 take about 30 ms."""
    tags_per_query_max: int = Field(default=16, ge=1, le=1_000)
    """Tags that one query names: their lists are merged, beyond four by sorting."""
    tag_bytes_max: int = Field(default=KIB, ge=128, le=64 * KIB)
    """One tag. An encrypted tag is a signature in base64: 88 bytes."""
    public_events_max: int = Field(default=10_000, ge=1)
    """Public events of one identity; their ids stand in memory while it is active."""
    public_event_bytes_max: int = Field(default=64 * KIB, ge=KIB, le=64 * MIB)
    """Text of one public event. A page of ten stays below 1 MiB."""
    nonces_per_shard_max: int = Field(default=2_000_000, ge=1_000)
    """Nonces in force in one shard, about 100 bytes of memory each. When full, commands are
    refused: forgetting a nonce would let a replay in."""
    sockets_max: int = Field(default=20_000, ge=1)
    """Open WebSockets of one edge process; needs as many files."""
    sockets_per_identity_max: int = Field(default=32, ge=1)
    """Open WebSockets of one identity: its devices and tabs."""
    sockets_per_address_max: int = Field(default=2_000, ge=1)
    """Open WebSockets of one client address: a tenth of all, so that no single stranger takes the
    places of everybody. One address may be a whole office's."""
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
    transaction_items_max: int = Field(default=1_024, ge=1, le=100_000)
    """Commands in one transaction of a host, from all calls that wait. More share one sync of the
    disk, and wait for the slowest among them."""
    transaction_bytes_max: int = Field(default=32 * MIB, ge=MIB, le=128 * MIB)
    """Bytes of the calls that one transaction takes together; a larger call is one alone."""
    gather_s_max: float = Field(default=0.02, ge=0, le=1)
    """Time that a transaction in PostgreSQL waits at most for more commands when several came
    lately: as long as the last one took, and no longer than this; one client alone never waits. A
    commit costs host and server 1.5 ms of CPU together, so that two nodes with small transactions
    each would carry less than one. SQLite has no use for it."""
    host_call_s_max: float = Field(default=30, gt=0, le=600)
    """Time for a host to answer, then the outcome is unknown to the client. Covers the restart of
    a host with its shards."""
    host_silent_s_max: float = Field(default=10, ge=1, le=600)
    """Time that a host of a cluster may be silent while Ray takes it for alive; then its shards are
    given to others. Longer than the restart of a host, shorter than the patience of clients."""
    move_wait_s_max: float = Field(default=10, gt=0, le=600)
    """Time that a command waits for its shard to have an owner again, then 503. A planned move
    takes a fraction of a second, the loss of a node several."""
    dedicated_max: int = Field(default=64, ge=0, le=4_096)
    """Identities of a cluster that may have a host of their own: a process of 60 MB each."""
    dedicate_above_commands_per_s: float = Field(default=0, ge=0)
    """An identity of a cluster that gets more commands than this for seconds gets a host of its
    own. 0 is never: anybody who may write to an identity can make it busy, so that processes start
    for strangers is for the operator to decide. A host takes some thousand a second."""
    dedicated_quiet_s: float = Field(default=60, ge=10, le=86_400)
    """An identity that got its host for its load goes back to its shard after less than a quarter
    of that load for so long, and stays there for as long again, also when an operator released it.
    Hosts count for 3 s at a time."""
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
        at_most(self, "body_bytes_max", "bodies_bytes_max")
        at_most(self, "body_bytes_max", "socket_buffer_bytes_max")
        at_most(self, "sockets_per_identity_max", "sockets_max")
        at_most(self, "batch_items_max", "outbox_items_max")
        return self


class Protocol(Section):
    """Choices that DCTRL-0004 leaves to the mediator; the defaults are the specification's."""

    timestamp_window_ms: int = Field(default=300_000, ge=1_000, le=3_600_000)
    """Largest difference between a command's timestamp and our clock (DCTRL-0004 5.1). Every nonce
    is kept this long or twice as long."""
    socket_auth_s: float = Field(default=10, gt=0, le=300)
    """Time from upgrade to AUTHENTICATE (10.2), then close 4001."""
    ping_interval_s: float = Field(default=30, gt=0, le=3_600)
    """Time between PINGs on a WebSocket (10.4). Below the time-outs of proxies, 60 s as a rule."""
    pings_missed_max: int = Field(default=2, ge=1, le=100)
    """PINGs without PONG before the WebSocket is closed."""
    contract_lifetime_s_max: int | None = Field(default=None, ge=60)
    """Longest registration that is accepted. Unset: any, because the requestor has signed the term
    and the mediator accepts by default (DCTRL-0003 9)."""
    require_mediator_in_did: bool = False
    """Register only a did:decentrl that names this mediator. Off: an identity may change its
    mediator and keep its DID (DCTRL-0001)."""
    cors_allowed_origin: Origin = "*"
    """Access-Control-Allow-Origin (3.4). Commands carry their own signature and no cookie, so *
    gives no page more than it has."""


class Rates(Section):
    """Token buckets of each edge process; 0 switches a rate off."""

    per_address_per_s: float = Field(default=2_000, ge=0)
    """Requests of one client address (IPv6: one /64). High, because one address may be another
    mediator's or a whole office's; below what one core verifies, so that one address cannot take
    all of it."""
    per_sender_per_s: float = Field(default=200, ge=0)
    """Commands of one sender, counted after its signature was verified: nobody spends another's
    tokens. A person's devices need a few; an import needs hundreds."""
    public_reads_per_address_per_s: float = Field(default=100, ge=0)
    """GET /public of one client address. Unsigned, and each is a query of the log (DCTRL-0007
    10)."""
    sockets_auth_per_address_per_s: float = Field(default=100, ge=0)
    """WebSocket upgrades of one client address. After a restart all clients behind one address
    come back at once: burst_s covers 500 of them."""
    burst_s: float = Field(default=5, ge=1, le=3_600)
    """Seconds of its rate that a quiet key may use at once: the depth of every bucket."""
    keys_max: int = Field(default=50_000, ge=1, le=10_000_000)
    """Keys that each rate remembers, about 200 bytes each. Beyond it new keys share one bucket
    until an old key is quiet for burst_s."""
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    """Networks of our own reverse proxies. X-Forwarded-For is believed from these alone; everybody
    else could write any address there."""


class DidWeb(Section):
    """Resolution of other parties' did:web, which makes this server fetch what a stranger names."""

    enabled: bool = False
    """Fetch did:web documents. Off: such senders and recipients are not found."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts to fetch from, with :port where it is not 443. Empty: any host."""
    bytes_max: int = Field(default=64 * KIB, ge=KIB, le=16 * MIB)
    """Size of one document."""
    seconds_max: float = Field(default=5, gt=0, le=60)
    """Time for one document, from look-up to last byte."""
    cache_s: float = Field(default=300, ge=0, le=86_400)
    """Time that a document, or its absence, is believed. A withdrawn key works this much
    longer."""
    cache_entries_max: int = Field(default=10_000, ge=1, le=1_000_000)
    """Documents in the cache."""


class Settings(Section):
    """Everything that can be set."""

    data_dir: Path = Path("data")
    """Directory of the mediator's keys and of the embedded log. Back it up: contracts are bound to
    the keys."""
    listen: Listen = "127.0.0.1:8080"
    """Address and port; port 0 takes a free one. Loopback by default: a proxy that speaks TLS
    belongs in front."""
    public_url: Url | None = None
    """Where clients reach this mediator. Unset: http:// and the listen address."""
    did: Did | None = None
    """The mediator's DID, which every contract names for ever. Unset: the did:web of the public
    URL."""
    log: LogAddress | None = Field(default=None, repr=False)
    """The event log. Unset: log.db in data_dir. Keep a password out of it (PGPASSFILE), or give it
    by environment or file: command lines are public on a machine. Several PostgreSQL databases,
    with spaces between, share the log's shards; their number and order are fixed for its life."""
    placement: Literal["sharded", "dedicated"] = "sharded"
    """sharded: each host owns shards of identities. dedicated: one Ray actor per identity, 60 MB
    each, for few and heavy ones."""
    dedicated_dids: tuple[Did, ...] = ()
    """Identities that get a Ray actor of their own; the rest stays sharded."""
    hosts: int = Field(default=1, ge=1, le=256)
    """Processes that own shards, for each database of the log. One group commit serves a host; a
    second host pays on PostgreSQL with cores to spare."""
    edges: int = Field(default=1, ge=1, le=256)
    """Processes that speak HTTP on the same port. Parsing and signatures fill about one core
    each."""
    shards: int = Field(default=16, ge=1, le=1_024)
    """Shards of the log, fixed for its life when it is created; bounds the useful number of
    hosts."""
    ray_address: str | None = Field(default=None, min_length=1)
    """Ray cluster to join, host:port or auto. Unset: start Ray on this machine, on loopback."""
    ray_node_ip: str | None = Field(default=None, min_length=1)
    """Address of the Ray node to be on, where this machine runs several. Unset: the only one."""
    node: NodeName | None = None
    """Name of this node in a cluster; no other may have it. Unset: the name of the machine."""
    keys_file: Path | None = None
    """File of the mediator's keys. Unset: mediator-keys.json in data_dir. In a cluster every node
    needs the same keys: give each the same file."""
    metrics_listen: Listen | None = None
    """Where Prometheus asks for measures (GET /metrics, no password), for example 127.0.0.1:9464;
    port 0 takes a free one. Unset: nowhere. A default port would keep a second mediator on one
    machine from starting, and show how busy this one is to whoever is on it."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of the lines on stderr."""
    limits: Limits = Limits()
    protocol: Protocol = Protocol()
    rates: Rates = Rates()
    did_web: DidWeb = DidWeb()
    didcomm: DidComm = DidComm()
    outbound: Outbound = Outbound()
    postgres: Postgres = Postgres()
    export: Export = Export()
    audit: Audit = Audit()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        at_most(self, "hosts", "shards")
        if self.hosts * len(self.log_dsns) > self.shards:
            names: dict[str, object] = {
                "smaller": "hosts",
                "larger": "shards",
                "times": len(self.log_dsns),
            }
            raise PydanticCustomError("contradiction", "{smaller} at most {larger}", names)
        # A delivery is base64 within an envelope: not twice as long as what it carries.
        self._carries("delivery_bytes_max", 2, "socket_buffer_bytes_max")
        self._carries("message_bytes_max", 2, "socket_buffer_bytes_max")
        return self

    def _carries(self, smaller: str, times: int, larger: str) -> None:
        if times * getattr(self.didcomm, smaller) > getattr(self.limits, larger):
            names: dict[str, object] = {
                "smaller": f"didcomm.{smaller}",
                "larger": f"limits.{larger}",
                "times": times,
            }
            raise PydanticCustomError("contradiction", "{smaller} at most {larger}", names)

    @property
    def listen_host(self) -> str:
        """The address to bind."""
        return split_listen(self.listen)[0]

    @property
    def listen_port(self) -> int:
        """The port to bind; 0 takes a free one."""
        return split_listen(self.listen)[1]

    @property
    def local_url(self) -> str:
        """Where this machine reaches the mediator; a wildcard address is reached as localhost."""
        wildcard = self.listen_host in WILDCARDS
        return f"http://localhost:{self.listen_port}" if wildcard else f"http://{self.listen}"

    @property
    def url(self) -> str:
        """Where clients reach the mediator."""
        return self.local_url if self.public_url is None else self.public_url.rstrip("/")

    @property
    def mediator_did(self) -> str:
        """The mediator's DID: as set, else the did:web of its URL."""
        return self.did or did_web(self.url)

    @property
    def log_dsn(self) -> str:
        """The event log, or its first database: as set, else SQLite in the data directory."""
        return self.log_dsns[0]

    @property
    def log_dsns(self) -> tuple[str, ...]:
        """The databases of the event log, in their order."""
        path = quote(str(self.data_dir / "log.db"))
        log = self.log or (f"sqlite://{path}" if path.startswith("/") else f"sqlite:{path}")
        return (log,) if log.startswith("sqlite:") else tuple(log.split())

    def each_database(self) -> list[Settings]:
        """These settings for whoever works with one database at a time; with one, themselves.

        The export of each goes to a folder of its own: ``db-0``, ``db-1`` and so on.
        """
        if len(self.log_dsns) == 1:
            return [self]
        return [
            self.model_copy(update={"log": dsn, "export": self.export.of_database(number)})
            for number, dsn in enumerate(self.log_dsns)
        ]

    @property
    def keys_path(self) -> Path:
        """The file of the mediator's keys."""
        return self.keys_file or self.data_dir / "mediator-keys.json"

    def on_node(self, name: str) -> Settings:
        """These settings on the node of this name."""
        return self.model_copy(update={"node": name})

    def bound_to(self, port: int) -> Settings:
        """These settings after port 0 was bound to ``port``."""
        host, _ = self.listen.rsplit(":", 1)
        return self.model_copy(update={"listen": f"{host}:{port}"})
