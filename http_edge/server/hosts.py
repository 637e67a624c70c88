"""Derives from the settings what hosts need: the placement, and the options of each host."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from actors.core.limits import HostLimits, IdentityLimits, RetentionPace
from actors.core.partitioning import Placement
from actors.host.host_finder import HostFinder
from actors.host.identity_host import HostOptions
from actors.placement.dedication import ANY_LOAD_PER_S, DedicationRules
from eventstore.log.host_leases import HostLeases, answer_s_max, node_protocol
from eventstore.stores.open_log import open_host_leases
from http_edge.settings.settings import Section, Settings


def placement_of(settings: Settings) -> Placement:
    """The owner of each partition according to the settings."""
    return Placement(
        shards=settings.shards,
        hosts=settings.hosts,
        databases=len(settings.log_dsns),
    )


def dedicate_above_per_s(settings: Settings) -> float:
    """Commands per second above which the placer dedicates an identity; 0 for never."""
    if settings.placement == "dedicated":
        return ANY_LOAD_PER_S
    return settings.limits.dedicate_above_commands_per_s


def dedication_rules(settings: Settings, database: int) -> DedicationRules:
    """The rules of a database's placer: what it places, and when to dedicate identities.

    Each database may have its even part of ``limits.dedicated_max``; the first ones one more each
    if it cannot be divided.
    """
    limits, placement = settings.limits, placement_of(settings)
    part, more = divmod(limits.dedicated_max, placement.databases)
    return DedicationRules(
        placement=placement,
        database=database,
        silent_s_max=limits.host_lease_s,
        identities_max=part + (database < more),
        above_per_s=dedicate_above_per_s(settings),
        quiet_s=limits.dedicated_quiet_s,
        named=frozenset(d for d in settings.dedicated_dids if placement.database_of(d) == database),
    )


def host_finder(settings: Settings, unserved: Callable[[], Container[int]]) -> HostFinder:
    """A finder of the hosts in all databases of the log that are not ``unserved``."""
    databases = [host_leases(settings, place) for place in range(len(settings.log_dsns))]
    answer_s = answer_s_max(settings.limits.host_lease_s)
    return HostFinder(databases, unserved, answer_s_max=answer_s)


def host_leases(settings: Settings, database: int = 0) -> HostLeases:
    """The host leases in a database of the log, by its number; this does not connect."""
    lease_s = settings.limits.host_lease_s
    return open_host_leases(settings.log_dsns[database], settings.postgres.bounds, lease_s=lease_s)


def host_options(settings: Settings, index: int) -> HostOptions:
    """The options of the host with this index in the node's ``Placement.host_names_on``.

    They name no partitions if there is a placer.
    """
    limits, placement = settings.limits, placement_of(settings)
    name = placement.host_names_on(settings.node or "")[index]
    return HostOptions(
        name=name,
        dsn=settings.log_dsns[placement.database_of_host(name)],
        postgres=settings.postgres.bounds,
        allow_unsafe=settings.postgres.unsafe_ok,
        partitions=None if settings.has_placer else placement.partitions_of(index),
        node=settings.node or "",
        lease_s=limits.host_lease_s,
        protocol=node_protocol(placement.databases),
        address=settings.host_address,
        shards=settings.shards,
        limits=replace(
            HostLimits(**_named_alike(HostLimits, limits, settings.protocol, settings.rates)),
            commit_delay_s_max=0.0
            if settings.log_dsn.startswith("sqlite:")
            else limits.commit_delay_s_max,
            dedicate_above_commands_per_s=dedicate_above_per_s(settings),
            identity=_identity_limits(settings),
            retention=RetentionPace(**_named_alike(RetentionPace, settings.retention)),
        ),
    )


def _identity_limits(settings: Settings) -> IdentityLimits:
    retention = settings.retention
    return IdentityLimits(
        **_named_alike(IdentityLimits, settings.limits, settings.didcomm),
        queue_age_s_max=retention.messages_s,
        contract_requests_age_s_max=retention.contract_requests_s,
        expired_contracts_age_s_max=retention.expired_contracts_s,
        unregistered_age_s_max=retention.unregistered_s,
        public_events_age_s_max=retention.public_events_s,
        idle_agents_age_s_max=retention.idle_agents_s,
    )


def _named_alike(kind: type[Struct], *sections: Section) -> dict[str, Any]:
    """The settings of these sections that have the name of a field of ``kind``."""
    settings = {name: value for section in sections for name, value in section}
    return {name: settings[name] for name in kind.__struct_fields__ if name in settings}
