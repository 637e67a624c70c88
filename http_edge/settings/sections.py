"""The sections of the settings beside the limits, one class each; see ``settings.settings``."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, IPvAnyNetwork, model_validator

from eventstore.stores.postgres_bounds import PostgresBounds
from http_edge.settings.value_types import (
    KIB,
    MIB,
    AgentName,
    Did,
    Listen,
    Origin,
    Section,
    at_most,
)

DAY_S: Final = 86_400
AGE_S_MAX: Final = 100 * 365 * DAY_S


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
    registration: Literal["open", "invitation", "allow_list", "closed"] = "open"
    """Who may register. open: any identity. invitation: those that bring the id of an invitation
    made by poste invite. allow_list: the DIDs in allowed_dids. closed: no new one. Who has
    registered once may always renew. Of DIDComm wallets didcomm.registration says it."""
    allowed_dids: tuple[Did, ...] = ()
    """Identities that may register with registration allow_list."""
    cors_allowed_origin: Origin = "*"
    """Access-Control-Allow-Origin (3.4). Commands carry their own signature and no cookie, so *
    gives no page more than it has."""


class Rates(Section):
    """Token buckets; 0 switches a rate off.

    Work is counted in units of about 70 us of a host: a message of 1 KiB is 1, each further KiB
    0.1, a saved event 0.8, one of its tags 0.8, a public event's 0.4, a contract 3, a record of a
    page 0.1. What an address may do is shared evenly among the edges of a mediator.
    """

    per_address_per_s: float = Field(default=2_000, ge=0)
    """Requests of one client address (IPv6: one /64). High, because one address may be another
    mediator's or a whole campus's; below what one core verifies, so that one address cannot take
    all of it."""
    unproven_tokens: float = Field(default=16, ge=0, le=10_000)
    """Tokens of per_address_per_s that a request costs besides its own when it proves nothing: no
    valid signature, no envelope, an unknown recipient; and as many again for each
    16 KiB of it. So does a registration or a handshake, whose next identity costs a stranger a key
    alone. An address sends 117 of them a second, of 64 KiB 25."""
    registrations_per_s: float = Field(default=100, ge=0)
    """New identities of all clients together, and handshakes of DIDComm. Each writes 3 KiB that are
    kept for ever and gets quotas of its own: 100 a second are 26 GB a day. Beyond it newcomers
    wait; who is registered renews."""
    registrations_per_address_per_s: float = Field(default=10, ge=0)
    """The same of one client address, a tenth of all, so that no single stranger takes the place of
    all newcomers. 50 at once: a class that installs a wallet."""
    per_sender_per_s: float = Field(default=200, ge=0)
    """Work of one sender at all edges together, counted after its signature was verified: no
    sender spends another's tokens. A person's devices need a few units; an import of events without
    tags gets 250 a second, and all of it is 1.5 % of a host."""
    public_reads_per_address_per_s: float = Field(default=100, ge=0)
    """GET /public of one client address, each of which takes a token of per_address_per_s for each
    KiB of its answer besides. Unsigned, and each is a query of the log (DCTRL-0007 10)."""
    sockets_auth_per_address_per_s: float = Field(default=100, ge=0)
    """WebSocket upgrades of one client address. After a restart all clients behind one address
    come back at once: burst_s covers 500 of them."""
    limited_answer_s: float = Field(default=0.5, ge=0, le=10)
    """Time that the answer takes to a request beyond per_address_per_s, and up to ten times this
    where dozens of its address wait already; where 320 do, its connection is cut. To refuse
    thousands in a second would keep an edge as busy as serving them; a connection has one request
    at a time."""
    burst_s: float = Field(default=5, ge=1, le=3_600)
    """Seconds of its rate that a quiet key may use at once: the depth of every bucket."""
    keys_max: int = Field(default=50_000, ge=1, le=10_000_000)
    """Keys that each rate remembers, about 200 bytes each. Beyond it new keys share one bucket
    until an old key is quiet for burst_s."""
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    """Networks of our own reverse proxies. X-Forwarded-For is believed from these alone; any other
    client could write any address there."""


class DidWeb(Section):
    """Resolution of did:web and did:webvh, which makes this server fetch what a stranger names."""

    enabled: bool = False
    """Fetch documents of did:web, and of did:webvh for DIDComm v2. Off: such senders are not
    found, nor such recipients of Decentrl."""
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


class DidComm(Section):
    """DIDComm mediation and pickup, v1 and v2."""

    enabled: bool = True
    """Serve /didcomm and /invitation."""
    label: str = Field(
        default="Poste",
        min_length=1,
        max_length=64,
        json_schema_extra={"expected": "a name of 1 to 64 characters"},
    )
    """Name of the mediator in invitations; wallets show it to their owner."""
    registration: Literal["open", "invitation", "allow_list", "closed"] = "open"
    """Who may connect. open: any wallet. invitation: wallets with an invitation made by
    poste invite. allow_list: the keys in allowed_keys. closed: no new wallet."""
    allowed_keys: tuple[AgentName, ...] = ()
    """Keys and DIDs that may connect with registration allow_list: the key of the wallet's
    connection, or in DIDComm v2 the DID that it sends from, in any form."""
    message_bytes_max: int = Field(default=512 * KIB, ge=4 * KIB, le=16 * MIB)
    """One DIDComm message, packed, over HTTP or WebSocket; disclosed as max_receive_bytes."""
    forward_depth_max: int = Field(default=3, ge=1, le=16)
    """Forwards within one another that are unwrapped. Each costs a decryption, and no sender
    needs more than one for each mediator on the way."""
    forward_recipients_max: int = Field(default=4, ge=1, le=64)
    """Recipient keys of one message, which is stored once for each owner of some. Wallets write to
    one; each further one costs its sender's address as much as a message that proves nothing."""
    forward_delay_s_max: float = Field(default=60, ge=0, le=600)
    """Longest that the messages of a forward are held back for its sender (delay_milli of routing
    2.0). A restart of their host ends it earlier: they are stored, the delay is not."""
    unknown_recipient: Literal["accept", "refuse", "report"] = "accept"
    """A forward to a key or DID that no agent registered, in either generation of DIDComm. accept:
    answered like any other and as late, so that no sender learns which are registered. refuse: 404
    with its code. report: 404 with a problem report, signed in DIDComm v2 (e.p.req.not_enroll).
    It is counted by the form of its name and charged to the address it came from."""
    keylist_keys_max: int = Field(default=10_000, ge=1, le=1_000_000)
    """Keys that one agent registers; a wallet makes one for each of its connections."""
    keylist_updates_max: int = Field(default=200, ge=1, le=10_000)
    """Changes in one keylist-update; each is a command to the owner of its key."""
    owners_remembered_max: int = Field(default=100_000, ge=1)
    """Keys whose owner one edge process remembers, about 300 bytes each; another costs a question
    to its host."""
    accounts_remembered_max: int = Field(default=20_000, ge=1)
    """Rotated DIDs (from_prior of DIDComm v2) whose account one edge process remembers, about 300
    bytes each; another costs a question to its host."""
    keylist_page_max: int = Field(default=1_000, ge=1, le=10_000)
    """Keys in one answer to keylist-query."""
    delivery_messages_max: int = Field(default=100, ge=1, le=1_000)
    """Messages in one delivery or batch; a larger limit is taken as this one."""
    delivery_bytes_max: int = Field(default=2 * MIB, ge=64 * KIB, le=16 * MIB)
    """Bytes of messages in one delivery or batch, one message at least. Base64 and the envelope
    make it twice as long."""
    lease_s: float = Field(default=30, gt=0, le=3_600)
    """A delivered message that was not acknowledged is offered again after this. Wallets wait 15 s
    for an answer."""
    delay_s_max: float = Field(default=60, ge=0, le=600)
    """Longest wait for messages that a recipient may ask for (~timing.delay_milli). Below the
    time-outs of proxies, 60 s as a rule."""
    waiters_max: int = Field(default=10_000, ge=1)
    """Requests of one edge process that wait for messages at once; above it they are answered
    as if the time were over."""
    live_in_flight_max: int = Field(default=100, ge=1, le=10_000)
    """Messages delivered over one live socket that are not acknowledged yet; more wait."""
    leased_max: int = Field(default=1_000, ge=1, le=10_000)
    """Messages of one agent that are handed out and not acknowledged; with more, nothing is
    offered until some are acknowledged or offered again. Each question looks through them."""
    error_reports_max: int = Field(default=100, ge=0, le=100_000)
    """Problem reports that one sender gets within error_reports_s; then one more that says so, and
    none until some of that time is over (DIDComm v2, circuit breaker). 0 is no limit. Wallets in
    order get none; a loop of two that report to one another ends."""
    error_reports_s: float = Field(default=60, gt=0, le=86_400)
    """The time that error_reports_max counts for: who mends what was wrong gets reports soon."""
    socket_first_message_s: float = Field(default=30, gt=0, le=600)
    """Time from the upgrade to the first message that authenticates a socket."""
    socket_messages_per_s_max: float = Field(default=200, gt=0, le=10_000)
    """Incoming frames of one socket, with two seconds of burst; more are read later, none is
    lost. A live wallet sends an acknowledgement for each delivery."""
    ping_interval_s: float = Field(default=20, gt=0, le=3_600)
    """Time between pings on a socket; load balancers cut silent ones after 30 s and more."""


class Retention(Section):
    """What leaves by itself because its time is over, and how quickly.

    Each removal is an event with its reason in the log; its content is erased with it.
    """

    messages_s: int = Field(
        default=90 * DAY_S,
        ge=0,
        le=AGE_S_MAX,
        json_schema_extra={"former_name": "didcomm.queue_age_s_max"},
    )
    """A message that waited this long expires, of every protocol; 0 is never. Who does not come for
    three months has lost the device as a rule. Its sender may name an earlier time (expires_time of
    DIDComm v2), and so may its owner (Aries queue 1.0)."""
    contract_requests_s: int = Field(default=90 * DAY_S, ge=0, le=AGE_S_MAX)
    """A contract request that was not answered for so long expires; 0 is never. As long as
    messages: strangers send these, and who comes for one sees the other."""
    expired_contracts_s: int = Field(default=0, ge=0, le=AGE_S_MAX)
    """Time after its expiry after which a contract is not kept any more; 0 is never, since clients
    show the contracts of their history (8.6). It makes room in limits.contracts_max; the signed
    contract stays in its row of the log."""
    unregistered_s: int = Field(default=0, ge=0, le=AGE_S_MAX)
    """Time after the end of its registration after which messages, contract requests and contracts
    of an identity leave; 0 is never. Who may renew late should find what waited, and that has an
    age of its own. DIDComm wallets do not register."""
    public_events_s: int = Field(default=0, ge=0, le=AGE_S_MAX)
    """A public event that was published so long ago leaves, of every channel; 0 is never, because
    its publisher put it there to be found, and can withdraw it. Saved events have no such age: they
    are the owner's own history, which no one else reads."""
    idle_agents_s: int = Field(default=0, ge=0, le=AGE_S_MAX)
    """A DIDComm agent from which no message came for so long ends: connection, keylist, and what
    waits; 0 is never, because a wallet in a drawer is what a mediator is for. It ends up to an
    eighth later, an hour at least, since the last message is recorded no finer: a poll writes no
    row. The time before this was set, and before it was shortened, does not count. An endpoint that
    takes what is delivered is a sign of life too, and so is a registration of the same DID."""
    look_s: float = Field(default=10, gt=0, le=3_600)
    """Time between two looks for what is due, by an index. So much later than its time something
    leaves at most, if no command for its identity comes first."""
    pause_s: float = Field(default=0.1, gt=0, le=60)
    """Time between two steps while more is due. Clients wait for a step at most, and find a host
    that has other work the rest of the time."""
    identities_per_step_max: int = Field(default=32, ge=1, le=1_000)
    """Identities in one step. At most 300 a second: a backlog of a million takes an hour."""
    records_per_step_max: int = Field(default=64, ge=1, le=10_000)
    """Records of one identity that leave in one step, and all clients of the host wait for it: 64
    take about a millisecond of CPU. A step of an erasure with more has a transaction of its own;
    of saved events that are on no list any more it takes twice as many."""


class Outbound(Section):
    """Delivery to DIDComm agents that have an endpoint of their own."""

    enabled: bool = True
    """Post messages to the endpoint that an agent named when it connected. Off: they wait."""
    allowed_networks: tuple[IPvAnyNetwork, ...] = ()
    """Networks besides the public addresses that may be reached, for agents in the same data
    centre. Empty: none, because a stranger names the endpoint."""
    timeout_s: float = Field(default=10, gt=0, le=120)
    """Time for one delivery, from look-up to the status of the answer."""
    retry_s_min: float = Field(default=0.5, gt=0, le=60)
    """Wait after the first failure; it doubles up to retry_s_max."""
    retry_s_max: float = Field(default=300, gt=0, le=86_400)
    """Longest wait between two tries; a message from the agent ends it. Messages stay queued until
    they are accepted. Each try is a few rows in the log, so endpoints that are gone for good must
    not be tried often."""
    in_flight_max: int = Field(default=64, ge=1, le=10_000)
    """Deliveries of one edge process under way at once, beside in_flight_slow_max. Each holds a
    MiB of messages at most."""
    in_flight_new_max: int = Field(default=32, ge=1, le=10_000)
    """Those of them to endpoints that have not answered quickly yet. The rest is for those that
    have: however many endpoints strangers name, they wait for each other alone."""
    in_flight_slow_max: int = Field(default=16, ge=1, le=10_000)
    """Deliveries under way at once to endpoints that timed out or took longer than slow_s, until
    one answers quickly again. They have places of their own and take none of the others."""
    slow_s: float = Field(default=1, gt=0, le=60)
    """An answer that takes longer is slow. Agents answer within some tens of milliseconds; a place
    is kept no longer than this at a time."""
    in_flight_per_host_max: int = Field(default=4, ge=1, le=1_000)
    """Deliveries to one address under way at once, of new, of slow and of all other endpoints: no
    client makes this server flood another."""
    in_flight_per_network_max: int = Field(default=8, ge=1, le=10_000)
    """The same for one network (/24 of IPv4, /48 of IPv6), which one party has as a rule."""
    endpoints_remembered_max: int = Field(default=10_000, ge=1, le=10_000_000)
    """Endpoints of which one edge process knows how they answered, about 400 bytes each. One that
    was forgotten counts as new."""
    agents_max: int = Field(default=10_000, ge=1)
    """Agents with messages on their way that one edge process keeps in mind; the others wait for
    the next sweep."""
    sweep_s: float = Field(default=10, gt=0, le=3_600)
    """Time between two looks for messages that should be on their way and are not, as after a
    restart."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        at_most(self, "retry_s_min", "retry_s_max")
        at_most(self, "in_flight_per_host_max", "in_flight_max")
        return self


class Postgres(Section):
    """Connections to a log in PostgreSQL. TLS and several servers stand in the address: log."""

    connections_kept: int = Field(default=2, ge=1, le=256)
    """Connections that one host keeps open without work: that of its writer, and one for reads."""
    connections_max: int = Field(default=10, ge=1, le=256)
    """Connections of one host at most: one for its writer, one for snapshots, the rest for its
    other threads, of which few ask the log at the same time. All hosts together, and a few for the
    tools, have to stay below the server's max_connections."""
    connect_s_max: float = Field(default=5, ge=1, le=60)
    """Time for one server to take a connection, and to show that an idle one still lives. With
    several servers in the address each gets it in turn."""
    lock_s_max: float = Field(default=10, ge=0.1, le=300)
    """Time to wait for the lock that appends take in turn; the server enforces it."""
    answer_s_max: float = Field(default=15, ge=1, le=600)
    """Time for the answer to one statement; then the connection is closed and the outcome is
    unknown. Below limits.host_call_s_max, so that a client hears of it from the host, and above
    lock_s_max."""
    idle_s_max: float = Field(default=15, ge=1, le=600)
    """The server ends a transaction that does nothing for longer: its process was paused or cut
    off. Within an append, which has the lock of all, it waits for 2 s."""
    unsafe_ok: bool = False
    """Serve from a server with fsync, full_page_writes or synchronous_commit off, which loses
    messages that were accepted when its power fails. For experiments only."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        at_most(self, "connections_kept", "connections_max")
        at_most(self, "lock_s_max", "answer_s_max")
        return self

    @property
    def bounds(self) -> PostgresBounds:
        """The bounds with which the log is opened."""
        return PostgresBounds(
            connections_kept=self.connections_kept,
            connections_max=self.connections_max,
            connect_s_max=self.connect_s_max,
            lock_s_max=self.lock_s_max,
            answer_s_max=self.answer_s_max,
            idle_s_max=self.idle_s_max,
        )


class Operators(Section):
    """What operators see and order: figures, queues, shards, identities, memory."""

    listen: Listen = "127.0.0.1:0"
    """Address and port of a listener of their own, which no proxy should lead to. Port 0 takes a
    free one; the commands of this machine find it in data_dir. A port that is known beforehand
    could be taken by another user of the machine, who would be sent the token."""
    token_file: Path | None = None
    """File of the token that every request there and to metrics_listen has to carry
    (Authorization: Bearer). Unset: operators-token in data_dir, made at the first start."""


class Export(Section):
    """Export of the log to Parquet files beside the serving mediator; also poste export."""

    to: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^(/.*|[a-z][a-z0-9+.-]*://.+)$",
        json_schema_extra={
            "expected": "an absolute path or a URI, for example s3://bucket/folder?region=eu-west-1"
        },
    )
    """Where the log is exported to while the mediator serves. Unset: nowhere. Keep keys of a store
    out of it; S3 finds them in its own environment variables and files. In a cluster every node may
    have the same: one exports each database, the others wait and take over within lag_s_max."""
    lag_s_max: float = Field(default=10, gt=0, le=86_400)
    """An event is exported at most this long after it was stored, plus the time to write it. Each
    time makes a file, if anything happened."""
    rows_per_file_max: int = Field(default=262_144, ge=1_000, le=10_000_000)
    """Rows of one file, up to the end of the transaction that reaches it."""
    bytes_per_step_max: int = Field(default=64 * MIB, ge=MIB, le=1_024 * MIB)
    """Bytes of events that are exported at once, up to the end of the transaction that reaches it.
    The exporting process needs about eight times as much memory."""
    compact_files_min: int = Field(default=16, ge=2, le=10_000)
    """Steps of the export that are put together once there are so many small ones in a row."""
    replaced_kept_s: float = Field(default=3_600, ge=0, le=604_800)
    """Small files stay this long after they were put together: a rebuild that began before reads
    them to its end."""
    erased_every_s: float = Field(default=86_400, ge=0, le=31_536_000)
    """Time after which names of erased identities leave the log, and files are written again
    without them and without contents that were erased since; 0 is never. Most contents are left out
    before, where small files are put together. Replaced files stay for replaced_kept_s."""
    versions_kept_s: float = Field(default=86_400, ge=0, le=31_536_000)
    """Seconds for which earlier versions of the exported table can be opened by their number; files
    that were put together since stay for replaced_kept_s alone. Each step makes a version."""
    settled_s: float = Field(default=60, ge=0, le=3_600)
    """Seconds after which what was recorded is surely in the log: longer than an append takes and
    than clocks of machines differ. The export says that it is complete until so long ago."""
    complete_every_s: float = Field(default=60, gt=0, le=86_400)
    """Seconds after which an idle export says anew until when it is complete."""
    retry_s_max: float = Field(default=60, gt=0, le=3_600)
    """Longest wait before an export that failed is tried again; the mediator serves meanwhile."""

    def of_database(self, number: int) -> Export:
        """These settings for one of several databases, whose export has a folder of its own."""
        # Imported here, because the help of a command needs no log.
        from eventstore.log.databases import folder_of_database  # noqa: PLC0415

        to = None if self.to is None else folder_of_database(self.to, number)
        return self.model_copy(update={"to": to})


class Archive(Section):
    """Old rows of a log leave it for its archive, beside the serving mediator.

    The archive is the export: where export.to says, else, of a log in SQLite, the folder archive of
    data_dir. Also poste log archive.
    """

    enabled: bool | None = None
    """Let old rows leave while the mediator serves. Unset: from a log in SQLite alone. On: from one
    in PostgreSQL, too, for export.to, which every node has to reach: to go on after an upgrade,
    too. Off: the log grows for ever, but for what poste log archive takes."""
    rows_age_s_min: float = Field(default=604_800, ge=0, le=3_153_600_000)
    """Seconds after which rows may leave. A week, in which the archive can be saved elsewhere,
    before it is the only place of what has left."""
    keep_s: float = Field(default=0, ge=0, le=3_153_600_000)
    """Seconds for which the archive, which is the export, keeps what has left the log; 0 for ever.
    Then what nothing needs is removed from it for good, in whole steps of the export: messages that
    were removed with what happened to them, counts of refusals, old seals. What is left says so,
    signed, and nothing can be asked as of a time before."""
    prune_every_s: float = Field(default=86_400, gt=0, le=31_536_000)
    """Time between two removals under keep_s. Each reads and writes again all that is so old."""
    every_s: float = Field(default=3_600, gt=0, le=604_800)
    """Time between two rounds, each by a process that ends. Where nothing is old enough it
    takes a second of CPU."""
    rows_per_step_max: int = Field(default=256, ge=1, le=10_000)
    """Rows that leave in one transaction, and those of the batch that reaches it. Commands wait for
    it: some milliseconds."""
    pause_s: float = Field(default=0.03, ge=0, le=60)
    """Time between two transactions of a round. Longer than SQLite lets a writer wait at first
    before it looks again, so that the mediator commits in between."""


class Audit(Section):
    """What the log keeps of commands that were refused and changed nothing."""

    refusals_period_s: float = Field(default=60, ge=0, le=86_400)
    """Each edge process counts what it refuses and records the counts once in this time, if there
    are any; 0 never. A process that is killed loses those of one period."""
    refusals_entries_max: int = Field(default=64, ge=16, le=4_096)
    """Entries of one record, each a kind of refusal with its count. Beyond, counts are put
    together without sender, then without command, then without reason: none is lost."""
    refusals_senders_bytes_max: int = Field(default=8 * KIB, ge=0, le=1_024 * KIB)
    """Bytes of all senders' DIDs in one record. With refusals_entries_max it bounds what refused
    commands add to the log: less than 30 MB a day for each edge process, whatever clients send."""
