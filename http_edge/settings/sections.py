"""The sections of the settings beside ``limits`` and ``outgoing``; see ``settings.settings``."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, IPvAnyNetwork, model_validator

from actors.core.limits import TIMESTAMP_WINDOW_MS_MAX
from eventstore.stores.postgres_bounds import PostgresBounds
from http_edge.settings.value_types import (
    COUNT_MAX,
    KIB,
    MIB,
    AgentName,
    Duration,
    ExportAddress,
    IdentityDid,
    Listen,
    Origin,
    Section,
    at_most,
    unfit,
)

DAY_S: Final = 86_400
AGE_S_MAX: Final = 100 * 365 * DAY_S
_ADMITTING_OTHERS: Final = frozenset({"open", "invitation"})  # than those in a list


class Protocol(Section):
    """Choices that DCTRL-0004 leaves to the mediator; the defaults are the specification's."""

    timestamp_window_ms: int = Field(default=300_000, ge=1_000, le=TIMESTAMP_WINDOW_MS_MAX)
    """Largest difference between the timestamp of a command (DCTRL-0004 5.1) or of AUTHENTICATE
    (10.2: 5 minutes) and the mediator's clock. Nonces are kept for once to twice this time."""
    socket_auth_s: Duration = Field(default=10, le=300)
    """Time from upgrade to AUTHENTICATE (10.2), then close 4001."""
    ping_interval_s: Duration = Field(default=30, le=3_600)
    """Time between PINGs on a WebSocket (10.4). Below the time-outs of proxies, usually 60 s."""
    pings_missed_max: int = Field(default=2, ge=1, le=100)
    """PINGs without PONG before the WebSocket is closed."""
    contract_lifetime_s_max: int | None = Field(default=None, ge=60, le=COUNT_MAX)
    """Longest registration that the mediator accepts. Unset: any, because the requestor has signed
    the term and the mediator accepts by default (DCTRL-0003 9)."""
    require_mediator_in_did: bool = False
    """Register only a did:decentrl that names this mediator. Off: an identity may change its
    mediator and keep its DID (DCTRL-0001)."""
    registration: Literal["open", "invitation", "allow_list", "closed"] = "open"
    """Who may register. open: any identity. invitation: identities that bring the id of an
    invitation made by poste invite. allow_list: the DIDs in allowed_dids. closed: no new identity.
    Registered identities may always renew. For DIDComm wallets, see didcomm.registration."""
    allowed_dids: tuple[IdentityDid, ...] = ()
    """Identities that may register with registration allow_list; refused with open and
    invitation, which let others register."""
    cors_allowed_origin: Origin = "*"
    """Access-Control-Allow-Origin (3.4). Commands carry their own signature and no cookie, so *
    gives a page no additional rights."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.allowed_dids and self.registration in _ADMITTING_OTHERS:
            raise unfit("allowed_dids", "none, or protocol.registration allow_list with it")
        return self


class Rates(Section):
    """Token buckets; 0 switches a rate off.

    One unit of work is about 70 us of a host: a message of 1 KiB costs 1, each further KiB 0.1, a
    saved event 0.8, each of its tags 0.8, a tag of a public event 0.4, a contract 3, a record of a
    page 0.1. The edges of a mediator share the rates of an address evenly.
    """

    per_address_per_s: float = Field(default=2_000, ge=0)
    """Requests of one client address (IPv6: one /64). High, as one address may be that of another
    mediator or a campus; below what one core verifies, so that none takes a whole core. A body, or
    a message on a socket, of 4 KiB or more costs one more token per 4 KiB (two if a Decentrl
    command has fractions or characters beyond U+FFFF), and so does an answer to a proven client: at
    most 8 MB a second together. A Decentrl command of more than 4 units of work costs a token per
    4, about half of a host. Each key that a wallet registers or removes costs two more, each key
    agreement or signature check beyond two that opens a DIDComm message one more."""
    unproven_tokens: float = Field(default=16, ge=0, le=10_000)
    """Tokens of per_address_per_s that a request costs in addition when it proves nothing: it has
    no valid signature or timestamp, a nonce that was used before, no envelope, or an unknown
    recipient and didcomm.unknown_recipient is not accept. Each 16 KiB of it cost as many again. A
    registration or a handshake costs the same: a stranger needs only a new key. One address sends
    117 such a second, or 20 of 64 KiB. What exceeds its bucket it owes, at most one bucket more."""
    registrations_per_s: float = Field(default=100, ge=0)
    """New identities of all clients together, DIDComm handshakes and rotations to another DID
    included. Each writes 3 KiB that are kept for ever and gets quotas of its own: 100 a second are
    26 GB a day. Above this rate newcomers wait; Decentrl renewals count, too, but never wait. What
    registration=invitation, allow_list or closed refuses, and an invitation that is used up, does
    not count."""
    registrations_per_address_per_s: float = Field(default=10, ge=0)
    """The same of one client address: a tenth of registrations_per_s, so that no single stranger
    shuts out all other newcomers. 50 at once: a class that installs a wallet."""
    per_sender_per_s: float = Field(default=200, ge=0)
    """Work of one sender at all edges together, counted after its signature was verified, so no
    sender spends the tokens of another. A person's devices need a few units; an import of events
    without tags gets 250 a second. The full rate is 1.5 % of a host."""
    public_reads_per_address_per_s: float = Field(default=100, ge=0)
    """GET /public of one client address; each also takes a token of per_address_per_s for each KiB
    of its answer. The requests are unsigned, and each queries the log (DCTRL-0007 10)."""
    sockets_auth_per_address_per_s: float = Field(default=100, ge=0)
    """WebSocket upgrades of one client address. After a restart all clients behind one address
    return at once: with burst_s, 500 of them may."""
    limited_answer_s: float = Field(default=0.5, ge=0, le=10)
    """Delay of the answer to a request above per_address_per_s. It grows up to ten times if dozens
    of requests of the same address wait; if 320 wait, the connection is cut. Without a delay, an
    edge would be as busy with refusals as with service; a connection has one request at a time."""
    burst_s: float = Field(default=5, ge=1, le=3_600)
    """Depth of every bucket: the seconds of its rate that an idle key may use at once."""
    keys_max: int = Field(default=50_000, ge=1, le=10_000_000)
    """Keys that each rate remembers, about 200 bytes each. Beyond this, new keys share one bucket
    until an old key has been idle for burst_s."""
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    """Networks of your own reverse proxies. X-Forwarded-For is accepted from these alone; any other
    client could write any address there."""


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
    connection, or in DIDComm v2 the DID that it sends from, in any form. Refused with open and
    invitation, which let others connect."""
    message_bytes_max: int = Field(default=512 * KIB, ge=64 * KIB, le=16 * MIB)
    """One DIDComm message, packed, over HTTP or WebSocket; disclosed as max_receive_bytes."""
    forward_depth_max: int = Field(default=3, ge=1, le=16)
    """Nested forwards that are unwrapped. Each costs a decryption, and a sender needs only one for
    each mediator on the way."""
    forward_recipients_max: int = Field(default=4, ge=1, le=64)
    """Recipient keys of one message, which is stored once for each owner. Wallets write to one;
    each further key costs the sender's address as much as a message that proves nothing."""
    forward_delay_s_max: float = Field(default=60, ge=0, le=600)
    """Longest delay of the messages of a forward that its sender may request (delay_milli of
    routing 2.0). Messages are stored, delays are not: a restart of the host ends these early."""
    unknown_recipient: Literal["accept", "refuse", "report"] = "accept"
    """Answer to a forward to a key or DID that no agent registered, in both versions of DIDComm.
    accept: the same answer as for any other, after the same time and at the same price, so that no
    sender learns which recipients are registered. refuse: 404 with its code. report: 404 with a
    problem report, signed in DIDComm v2 (e.p.req.not_enroll). These two cost the sender's address
    what proves nothing costs. In all cases the forward is counted by the form of the name."""
    keylist_keys_max: int = Field(default=10_000, ge=1, le=1_000_000)
    """Keys that one agent may register; a wallet makes one for each of its connections."""
    keylist_updates_max: int = Field(default=200, ge=1, le=10_000)
    """Changes in one keylist-update; each is a command to the owner of its key."""
    owners_remembered_max: int = Field(default=100_000, ge=1, le=COUNT_MAX)
    """Keys whose owner one edge process caches, about 300 bytes each; for any other key it asks the
    host."""
    accounts_remembered_max: int = Field(default=20_000, ge=1, le=COUNT_MAX)
    """Rotated DIDs (from_prior of DIDComm v2) whose account one edge process caches, about 300
    bytes each; for any other DID it asks the host."""
    keylist_page_max: int = Field(default=1_000, ge=1, le=10_000)
    """Keys in one answer to keylist-query."""
    delivery_messages_max: int = Field(default=100, ge=1, le=1_000)
    """Messages in one delivery or batch; a client that asks for more gets this many."""
    delivery_bytes_max: int = Field(default=2 * MIB, ge=64 * KIB, le=16 * MIB)
    """Bytes of messages in one delivery or batch, but always at least one message. Base64 and the
    envelope double the length."""
    lease_s: float = Field(default=30, ge=1, le=3_600)
    """Time after which a delivered message without an acknowledgement is offered again. Wallets
    wait 15 s for an answer."""
    delay_s_max: float = Field(default=60, ge=0, le=600)
    """Longest wait for messages that a recipient may request (~timing.delay_milli). Below the
    time-outs of proxies, usually 60 s."""
    waiters_max: int = Field(default=10_000, ge=1, le=COUNT_MAX)
    """Requests of one edge process that wait for messages at once; further requests, and those of
    more than 8 KiB, are answered as if their waiting time were over. One client address takes a
    quarter of the free slots at most, so 2,000 if it is alone: a stranger has many agents."""
    live_in_flight_max: int = Field(default=100, ge=1, le=10_000)
    """Messages delivered over one live socket and not yet acknowledged; further messages wait."""
    leased_max: int = Field(default=1_000, ge=1, le=10_000)
    """Messages of one agent that are delivered and not yet acknowledged. At this number nothing
    more is delivered until some are acknowledged or their lease ends. Each pickup request scans
    them."""
    error_reports_max: int = Field(default=100, ge=0, le=100_000)
    """Problem reports that one sender gets within error_reports_s. One more report then announces
    the limit, and no others follow until part of that time is over (DIDComm v2, circuit breaker). 0
    is no limit. Correct wallets get none; this ends a loop of two agents that report errors to each
    other."""
    error_reports_s: Duration = Field(default=60, le=86_400)
    """Time over which error_reports_max counts. Short, so that a sender that fixed its error soon
    gets reports again."""
    socket_first_message_s: Duration = Field(default=30, le=600)
    """Time from the upgrade to the first message that is accepted, be it a forward. A socket
    without one is closed with 1008."""
    socket_messages_per_s_max: float = Field(default=200, gt=0, le=10_000)
    """Incoming frames of one socket, with a burst of two seconds; further frames are read later,
    none is lost. A live wallet sends an acknowledgement for each delivery."""
    ping_interval_s: Duration = Field(default=20, le=3_600)
    """Time between pings on a socket; load balancers cut idle sockets, some after 30 s."""

    @property
    def invites_everyone(self) -> bool:
        """Is there an invitation that is the same for all, even if only some may follow it?"""
        return self.registration in {"open", "allow_list"}

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.allowed_keys and self.registration in _ADMITTING_OTHERS:
            raise unfit("allowed_keys", "none, or didcomm.registration allow_list with it")
        return self


class Retention(Section):
    """What the mediator removes after a time, and how quickly.

    The log records each removal as an event with its reason, and the content is erased with it.
    """

    messages_s: int = Field(
        default=90 * DAY_S,
        ge=0,
        le=AGE_S_MAX,
        json_schema_extra={"former_name": "didcomm.queue_age_s_max"},
    )
    """A message of any protocol expires after waiting this long; 0 is never. A recipient that is
    absent for three months has usually lost the device. The sender may set an earlier time
    (expires_time of DIDComm v2), and so may the recipient (Aries queue 1.0)."""
    contract_requests_s: int = Field(default=90 * DAY_S, ge=0, le=AGE_S_MAX)
    """A contract request without an answer expires after this; 0 is never. As long as messages_s: a
    client that fetches one kind also sees the other, and strangers send these."""
    expired_contracts_s: int = Field(default=0, ge=0, le=AGE_S_MAX)
    """A contract is removed this long after its expiry; 0 is never, since clients show the
    contracts of their history (8.6). Removal makes room in limits.contracts_max; the signed
    contract stays in its row, which leaves the log for its archive."""
    unregistered_s: int = Field(default=0, ge=0, le=AGE_S_MAX)
    """Messages, contract requests and contracts of an identity are removed this long after the end
    of its registration; 0 is never. An identity that renews late should find what waited, and
    waiting items have an age limit of their own. DIDComm wallets do not register."""
    public_events_s: int = Field(default=0, ge=0, le=AGE_S_MAX)
    """A public event of any channel is removed this long after its publication; 0 is never, because
    its publisher wants it to be found and can withdraw it. Saved events have no such age: they are
    the owner's own history, which no one else reads."""
    idle_agents_s: int = Field(default=0, ge=0, le=AGE_S_MAX)
    """The account of a DIDComm agent (connection, keylist and waiting messages) ends after this
    time without a message from the agent; 0 is never, because a mediator serves wallets that are
    switched off. It ends up to an eighth later, at least an hour, because a poll does not write a
    row and the last message is recorded only that exactly. Silence before this was set or shortened
    does not count. An endpoint that accepts a delivery is also a sign of life, and so is a
    registration of the same DID."""
    clock_settles_s: float = Field(default=3_600, ge=0, le=86_400)
    """If the clock of the machine goes ahead by a minute or more at once, nothing expires by that
    until it has lasted this long, because what is removed does not come back; 0 is at once. The
    time between the newest record and a start counts as well. An hour is time for a time service to
    correct the clock, and no one misses the hour if it was right. An archive with archive.keep_s
    follows the clock at once."""
    look_s: Duration = Field(default=10, le=3_600)
    """Time between two searches, by an index, for items whose time is over. An item is removed at
    most this much late, unless the clock has stepped ahead (clock_settles_s), or earlier by a
    command for its identity."""
    pause_s: Duration = Field(default=0.1, le=60)
    """Pause between two steps while more items are due. Clients wait for one step at most; during
    the pause the host serves them."""
    identities_per_step_max: int = Field(default=32, ge=1, le=1_000)
    """Identities in one step. At most 300 a second: a backlog of a million takes an hour."""
    records_per_step_max: int = Field(default=64, ge=1, le=10_000)
    """Records of one identity that one step removes while all clients of the host wait: 64 take
    about a millisecond of CPU. An erasure step that removes more has a transaction of its own. Of
    saved events that are no longer on any list, a step removes twice as many."""


class Postgres(Section):
    """Connections to a log in PostgreSQL. Its address (log) sets TLS and several servers."""

    connections_kept: int = Field(default=2, ge=1, le=256)
    """Idle connections that one host keeps open: one for its writer, one for reads."""
    connections_max: int = Field(default=10, ge=1, le=256)
    """Connections of one host at most: one for its writer, one for snapshots, the rest for its
    other threads, few of which use the log at the same time. The connections of all hosts plus a
    few for tools must stay below the server's max_connections."""
    connect_s_max: float = Field(default=5, ge=1, le=60)
    """Time for one server to accept a connection, or to confirm that an idle one still works.
    Several servers in the address are tried in turn, each for this long."""
    lock_s_max: float = Field(default=10, ge=0.1, le=300)
    """Time to wait for the lock that serialises appends; the server enforces it."""
    answer_s_max: float = Field(default=15, ge=1, le=600)
    """Time for the answer to one statement; after this the connection is closed and the outcome is
    unknown. Below limits.host_call_s_max, so that the host can still answer the client, and above
    lock_s_max."""
    idle_s_max: float = Field(default=15, ge=1, le=600)
    """The server ends a transaction that is idle for longer: its process was paused or cut off.
    During an append, which holds the lock that serialises appends, the server waits only 2 s."""
    unsafe_ok: bool = False
    """Use a server that has fsync, full_page_writes or synchronous_commit off and therefore loses
    accepted messages in a power failure. For experiments only."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        at_most(self, "connections_kept", "connections_max")
        at_most(self, "lock_s_max", "answer_s_max")
        return self

    @property
    def bounds(self) -> PostgresBounds:
        """The bounds with which the log is opened."""
        return PostgresBounds(**self.model_dump(exclude={"unsafe_ok"}))


class Operators(Section):
    """The listener for operators: figures, queues, shards, identities, memory."""

    listen: Listen = "127.0.0.1:0"
    """Address and port of the operators' listener, which no proxy should expose. Port 0 takes a
    free one; commands on this machine find it in data_dir. If the port were known beforehand,
    another user of the machine could take it and receive the token."""
    token_file: Path | None = None
    """File of the token that every request to this listener and to metrics_listen must carry
    (Authorization: Bearer). Unset: operators-token in data_dir, made at the first start."""


class Export(Section):
    """Export of the log to Parquet files while the mediator serves; see also poste export."""

    to: ExportAddress | None = Field(default=None, repr=False)
    """Where the serving mediator exports the log. Unset: nowhere. Do not put credentials of a store
    here; S3 reads them from its own environment variables and files. In a cluster every node may
    have the same place: one node exports each database, the others stand by and take over within
    lag_s_max."""
    lag_s_max: Duration = Field(default=10, le=86_400)
    """Longest time until a stored event is exported, apart from the time to write it. Each interval
    makes a file if anything happened."""
    rows_per_file_max: int = Field(default=262_144, ge=1_000, le=10_000_000)
    """Rows of one file. A file ends with the transaction that reaches this number."""
    bytes_per_step_max: int = Field(default=64 * MIB, ge=MIB, le=1_024 * MIB)
    """Bytes of events that one step exports. A step ends with the transaction that reaches this
    number. The exporting process needs about eight times as much memory."""
    compact_files_min: int = Field(default=16, ge=2, le=10_000)
    """Number of consecutive small steps after which the export merges them."""
    replaced_kept_s: float = Field(default=3_600, ge=0, le=604_800)
    """Time that merged files stay, so that a rebuild that began before can finish reading them."""
    erased_every_s: float = Field(default=86_400, ge=0, le=31_536_000)
    """Interval at which names of erased identities leave the log (an hour more without export), and
    files are rewritten without them and contents erased since; 0: never. Merges drop most contents
    earlier. Replaced files stay for replaced_kept_s. With export.to, also an hour after a start."""
    versions_kept_s: float = Field(default=86_400, ge=0, le=31_536_000)
    """Seconds for which earlier versions of the exported table can be opened by number. Files
    merged since then stay only for replaced_kept_s. Each step makes a version."""
    settled_s: float = Field(default=60, ge=10, le=3_600)
    """Seconds after which a recorded event is in the log, or its append waits there. At least 30
    with SQLite, else 5 and postgres.connect_s_max for each server and once more; in a cluster also
    twice clock_off_s_max. An export is complete until then, or before an append under way."""
    complete_every_s: Duration = Field(default=60, le=86_400)
    """Interval at which an idle export says anew until when it is complete."""
    head_every_s: float = Field(default=3_600, ge=0, le=31_536_000)
    """Interval at which GET /log/head gets a newer head; 0 is with each export. A head counts what
    was stored for all: on a quiet mediator, two heads seconds apart tell a stranger whether a key
    is registered to which a message was sent between them, and when its wallet fetches."""
    retry_s_max: Duration = Field(default=60, le=3_600)
    """Longest wait before a failed export is retried; the mediator keeps serving."""

    def of_database(self, number: int) -> Export:
        """These settings for one of several databases, whose export has a folder of its own."""
        # Imported here, because the help of a command needs no log.
        from eventstore.log.databases import folder_of_database  # noqa: PLC0415

        to = None if self.to is None else folder_of_database(self.to, number)
        return self.model_copy(update={"to": to})


class Archive(Section):
    """Moving old rows from the log to its archive while the mediator serves.

    The archive is the export at export.to; without that, for a log in SQLite, the folder archive in
    data_dir. See also poste log archive.
    """

    enabled: bool | None = None
    """Let old rows leave the log while the mediator serves. Unset: only from a log in SQLite. On:
    also from one in PostgreSQL, to export.to, which must be set and which every node must be able
    to reach, also in order to continue after an upgrade. Off: the log grows for ever, except for
    what poste log archive removes."""
    rows_age_s_min: float = Field(default=604_800, ge=0, le=3_153_600_000)
    """Seconds after which rows may leave. A week is time to back up the archive before it holds the
    only copy of these rows."""
    keep_s: float = Field(default=0, ge=0, le=3_153_600_000)
    """Seconds for which the archive, which is the export, keeps rows that have left the log; 0 for
    ever. After this, rows that nothing needs are removed for good, in whole steps of the export:
    removed messages with their history, counts of refusals, old seals. A signed statement in the
    export records the removal; queries as of an earlier time are no longer possible."""
    prune_every_s: Duration = Field(default=86_400, le=31_536_000)
    """Time between two removals by keep_s. Each reads all data of that age, and writes anew the
    days of which a row leaves, while the export goes on. With export.to, an hour after each start,
    too, if that is sooner."""
    every_s: Duration = Field(default=3_600, le=604_800)
    """Time between two rounds, or less if export.erased_every_s or prune_every_s is; each is a
    process of its own, which takes a second of CPU if there are no old rows."""
    rows_per_step_max: int = Field(default=256, ge=1, le=10_000)
    """Rows that leave in one transaction, up to the end of the batch that reaches this number.
    Commands wait for it: some milliseconds."""
    pause_s: float = Field(default=0.03, ge=0, le=60)
    """Pause between two transactions of a round. Longer than SQLite first lets a waiting writer
    sleep, so that the mediator can commit in between."""


class Audit(Section):
    """Counts in the log of commands that were refused and changed nothing."""

    refusals_period_s: float = Field(default=60, ge=0, le=86_400)
    """Interval at which each edge process records its counts of refusals, if there are any; 0 is
    never. A killed process loses the counts of one period."""
    refusals_entries_max: int = Field(default=64, ge=16, le=4_096)
    """Entries of one record, each a kind of refusal with its count. Beyond this, counts are merged
    without the sender, then without the command, then without the reason: no count is lost."""
    refusals_senders_bytes_max: int = Field(default=8 * KIB, ge=0, le=1_024 * KIB)
    """Bytes of all sender DIDs in one record. With refusals_entries_max this limits what refused
    commands add to the log: less than 30 MB a day for each edge process, whatever clients send."""
