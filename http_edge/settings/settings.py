"""The whole configuration: one frozen tree of typed settings, each with its unit and its reason.

``http_edge.settings.sources.load_settings`` makes the tree once from defaults, file, environment
and command line. After that it is a plain value, which can be pickled and written as JSON
(``model_dump_json``), and nothing reads the environment again. Every limit on a count, size or time
is a setting here; the reference (``poste config reference``) is generated from these fields.

A name ends with its unit: ``_bytes``, ``_s`` (seconds), ``_ms``, ``_per_s``; ``_max`` marks a cap.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import quote

from pydantic import Field, model_validator

from actors.core.limits import DECISION_S_MAX
from http_edge.settings.limits import Limits
from http_edge.settings.outgoing import DidWeb, Outbound, Push
from http_edge.settings.sections import (
    Archive,
    Audit,
    DidComm,
    Export,
    Operators,
    Postgres,
    Protocol,
    Rates,
    Retention,
)
from http_edge.settings.value_types import (
    DURATION_S_MIN,
    WILDCARDS,
    Did,
    Folder,
    IdentityDid,
    Listen,
    LogAddress,
    NodeAddress,
    NodeName,
    Section,
    Url,
    at_most,
    contradiction,
    did_web,
    servers_of,
    split_listen,
    unfit,
)

__all__ = [
    "OPERATORS_ADDRESS",
    "Archive",
    "Audit",
    "DidComm",
    "DidWeb",
    "Export",
    "Limits",
    "Operators",
    "Outbound",
    "Postgres",
    "Protocol",
    "Push",
    "Rates",
    "Retention",
    "Section",
    "Settings",
    "did_web",
    "split_listen",
]


OPERATORS_ADDRESS: Final = "operators-address"
"""The file of a data directory that says where its mediator answers operators."""
_SQLITE_APPEND_S_MAX: Final = 30
"""An append waits for other processes as long as SQLite's busy time-out (``sqlite_connections``),
before that perhaps for a removal in its own process that waits as long, and takes its own time. The
rest is for its decision (``DECISION_S_MAX``)."""
_DEDICATED_DID_BYTES_MAX: Final = 2_600
"""The name of a dedicated host has the DID and the node, and PostgreSQL's index of names takes no
more than 2,692 bytes of one."""


class Settings(Section):
    """Everything that can be set."""

    data_dir: Folder = Path("data")
    """Directory of the mediator's keys and of log.db. Back it up: contracts are bound to the
    keys."""
    listen: Listen = "127.0.0.1:8080"
    """Address and port; port 0 takes a free one. Loopback by default, behind a proxy that
    terminates TLS."""
    public_url: Url | None = None
    """Where clients reach this mediator. Unset: http:// and the listen address."""
    did: Did | None = None
    """The mediator's DID, which every contract names for ever. Unset: the did:web of the public
    URL."""
    log: LogAddress | None = Field(default=None, repr=False)
    """The event log. Unset: log.db in data_dir. Do not put a password on the command line, which
    other users of the machine can read: use PGPASSFILE, the environment or the file. Several
    PostgreSQL databases, separated by spaces, share the shards of the log; their number and order
    are fixed for the life of the log."""
    placement: Literal["sharded", "dedicated"] = "sharded"
    """sharded: each host owns shards of identities. dedicated: in addition, each registered
    identity that is in use gets a dedicated host, a process of 60 MB, within seconds; at most
    limits.dedicated_max have one. An identity without commands for limits.dedicated_quiet_s returns
    to its shard. For a few heavy identities."""
    dedicated_dids: tuple[IdentityDid, ...] = ()
    """Identities that get a dedicated host as soon as they have registered, used or not; at most
    limits.dedicated_max. They keep it until they are removed from this setting and an operator
    releases them. All others stay sharded."""
    hosts: int = Field(default=1, ge=1, le=256)
    """Processes that own shards, for each database of the log. Each host commits in groups of its
    own; a second host is worth it on PostgreSQL with cores to spare."""
    edges: int = Field(default=1, ge=1, le=256)
    """Processes that serve HTTP on the same port. Parsing and signatures use about one core
    each."""
    shards: int = Field(default=16, ge=1, le=1_024)
    """Number of shards, fixed when the log is created; limits the useful number of hosts."""
    node_address: NodeAddress | None = None
    """Address at which the other nodes of a cluster reach the hosts of this one; auto: the address
    that this machine uses towards the log's server. All nodes with an address and the same log in
    PostgreSQL are a cluster. Unset: this machine serves alone."""
    node: NodeName | None = None
    """Name of this node, unique in its cluster; only with node_address. Unset: the name of the
    machine."""
    keys_file: Path | None = None
    """File of the mediator's keys. Unset: mediator-keys.json in data_dir. In a cluster every node
    needs the same keys: give each the same file."""
    metrics_listen: Listen | None = None
    """Address where Prometheus reads metrics (GET /metrics, with the token of operators), for
    example 127.0.0.1:9464; port 0 takes a free one. Unset: none. With a default port, a second
    mediator on one machine could not start."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of the log lines on stderr."""
    limits: Limits = Limits()
    protocol: Protocol = Protocol()
    rates: Rates = Rates()
    did_web: DidWeb = DidWeb()
    didcomm: DidComm = DidComm()
    retention: Retention = Retention()
    outbound: Outbound = Outbound()
    push: Push = Push()
    operators: Operators = Operators()
    postgres: Postgres = Postgres()
    export: Export = Export()
    archive: Archive = Archive()
    audit: Audit = Audit()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        at_most(self, "hosts", "shards")
        if self.hosts * len(self.log_dsns) > self.shards:
            raise contradiction("hosts", "shards", len(self.log_dsns))
        self._require_dedicable()
        # A delivery is base64 in an envelope: less than twice as long as its content.
        for name in ("delivery_bytes_max", "message_bytes_max"):
            if 2 * getattr(self.didcomm, name) > self.limits.socket_buffer_bytes_max:
                raise contradiction(f"didcomm.{name}", "limits.socket_buffer_bytes_max", 2)
        self._require_settled()
        if 0 < self.audit.refusals_period_s < DURATION_S_MIN:
            raise unfit("audit.refusals_period_s", f"0, or at least {DURATION_S_MIN}")
        return self

    def _require_dedicable(self) -> None:
        """Refuse to dedicate more identities than may be, or where bounds keep some from it.

        Of several databases one may still have too few places for those that are named; its placer
        then says so.
        """
        name, most, databases = "limits.dedicated_max", self.limits.dedicated_max, self.log_dsns
        if self.placement == "dedicated" and not most:
            raise unfit(name, "more than 0 with placement dedicated")
        if len({*self.dedicated_dids}) > most:
            raise unfit("dedicated_dids", f"at most {most} ({name})")
        if self.has_placer and 0 < most < len(databases):
            expected = f"0, or {len(databases)} at least, one for each database of the log"
            raise unfit(name, expected)
        is_long = most > 0 and self.limits.did_bytes_max > _DEDICATED_DID_BYTES_MAX
        if self.has_placer and is_long and not self.log_dsn.startswith("sqlite:"):
            expected = f"at most {_DEDICATED_DID_BYTES_MAX:_} for dedicated hosts in PostgreSQL"
            raise unfit("limits.did_bytes_max", expected)

    def _require_settled(self) -> None:
        """Refuse appends, or clocks of nodes, by which an export is called complete too early."""
        if self.log_dsn.startswith("sqlite:"):
            least_s, why = float(_SQLITE_APPEND_S_MAX), "a log in SQLite"
        else:
            # An append that waits for a connection is not yet one that PostgreSQL has under way.
            # Before it tries each server, the one that it has may not answer.
            tried = 1 + max(map(servers_of, self.log_dsns))
            least_s = DECISION_S_MAX + tried * self.postgres.connect_s_max
            why = f"{tried} times postgres.connect_s_max"
        if self.node_address is not None and self.export.to is not None:
            name, off_s_max = "limits.clock_off_s_max", self.limits.clock_off_s_max
            if not off_s_max:
                raise unfit(name, "more than 0 in a cluster with export.to")
            # One node's clock may be ahead of the database's by as much as another one's is behind.
            least_s += 2 * off_s_max
            why += f" and 2 times {name}"
        if self.export.settled_s < least_s:
            raise unfit("export.settled_s", f"at least {least_s:g} with {why}")

    @property
    def has_placer(self) -> bool:
        """Does a placer assign partitions to hosts? In a cluster, and if identities are dedicated.

        Without a placer each host owns the shards that follow from its number.
        """
        by_load = self.placement == "dedicated" or self.limits.dedicate_above_commands_per_s > 0
        return self.node_address is not None or by_load or bool(self.dedicated_dids)

    @property
    def host_address(self) -> str:
        """Where hosts listen for edges."""
        return self.node_address or "127.0.0.1"

    @property
    def local_url(self) -> str:
        """The mediator's URL on this machine; a wildcard address becomes localhost."""
        return _reached(self.listen)

    @property
    def url(self) -> str:
        """The mediator's URL for clients."""
        return self.local_url if self.public_url is None else self.public_url.rstrip("/")

    @property
    def mediator_did(self) -> str:
        """The mediator's DID: as set, else the did:web of its URL."""
        return self.did or did_web(self.url)

    @property
    def log_dsn(self) -> str:
        """The address of the log, or of its first database: as set, else SQLite in the data dir."""
        return self.log_dsns[0]

    @property
    def log_dsns(self) -> tuple[str, ...]:
        """The addresses of the log's databases, in order."""
        path = quote(str(self.data_dir / "log.db"))
        log = self.log or (f"sqlite://{path}" if path.startswith("/") else f"sqlite:{path}")
        return (log,) if log.startswith("sqlite:") else tuple(log.split())

    def exporting_to(self, place: str) -> Settings:
        """These settings with the export at this place."""
        return self.model_copy(update={"export": self.export.model_copy(update={"to": place})})

    def each_database(self) -> list[Settings]:
        """These settings for each database of the log; unchanged if the log has one database.

        Each of several databases exports to a folder of its own: ``db-0``, ``db-1`` and so on.
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

    @property
    def archive_place(self) -> str:
        """Where the archive is: in the export, else in a folder of the data directory."""
        return self.export.to or str(self.data_dir.absolute() / "archive")

    @property
    def exported_place(self) -> str | None:
        """Where exported rows are: the export, else the archive if it exists."""
        place = self.archive_place
        return place if self.export.to is not None or Path(place).is_dir() else None

    @property
    def lets_rows_leave(self) -> bool:
        """Do old rows leave for the archive while the mediator serves?"""
        if self.log_dsn.startswith("sqlite:"):
            return self.archive.enabled is not False
        # Each node has a data directory of its own, so none of these can be the archive.
        return bool(self.archive.enabled) and self.export.to is not None

    @property
    def erases_names(self) -> bool:
        """Do names of erased identities leave by rounds, because there is no exporting process?"""
        return self.export.to is None and self.export.erased_every_s > 0

    @property
    def has_rounds(self) -> bool:
        """Does a process look from time to time what can leave the log: old rows, erased names?"""
        return self.lets_rows_leave or self.erases_names

    @property
    def round_s(self) -> float:
        """Seconds between two rounds: as often as the most frequent part of their work is due."""
        each = [self.archive.every_s]
        if self.erases_names:
            each.append(self.export.erased_every_s)
        if self.export.to is None and self.archive.keep_s:
            each.append(self.archive.prune_every_s)
        return min(each)

    @property
    def hangs_s(self) -> Mapping[str, float]:
        """Seconds without work, by its name in ``/status``, after which it may hang.

        Twice the time that it waits by these settings, and at least that of the alerts.
        """
        waits = {"export": (900.0, self.export.lag_s_max), "archive": (86_400.0, self.round_s)}
        return {name: max(least, 2 * wait_s) for name, (least, wait_s) in waits.items()}

    @property
    def operators_url(self) -> str:
        """The URL of the operators' listener on this machine."""
        return _reached(self.operators.listen)

    @property
    def operators_address_path(self) -> Path:
        """The file with the ``operators_url`` while the mediator runs."""
        return self.data_dir / OPERATORS_ADDRESS

    @property
    def served_url_path(self) -> Path:
        """The file with the ``url`` of the mediator that last served from this directory."""
        return self.data_dir / "served-url"

    @property
    def operators_token_path(self) -> Path:
        """The file of the operators' token."""
        return self.operators.token_file or self.data_dir / "operators-token"

    def on_node(self, name: str, address: str) -> Settings:
        """These settings on the node of this name, at this address."""
        return self.model_copy(update={"node": name, "node_address": address})

    def bound_to(self, port: int, operators_port: int) -> Settings:
        """These settings with the ports to which the listeners are bound, in place of ports 0."""
        listen = _at_port(self.operators.listen, operators_port)
        operators = self.operators.model_copy(update={"listen": listen})
        update = {"listen": _at_port(self.listen, port), "operators": operators}
        return self.model_copy(update=update)


def _at_port(listen: str, port: int) -> str:
    return f"{listen.rpartition(':')[0]}:{port}"


def _reached(listen: str) -> str:
    """The URL of a listen address on this machine; a wildcard becomes localhost."""
    host, port = split_listen(listen)
    return f"http://localhost:{port}" if host in WILDCARDS else f"http://{listen}"
