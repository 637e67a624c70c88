"""What follows for hosts from the settings: the placement, and the options of each host."""

from __future__ import annotations

from actors.core.limits import HostLimits, IdentityLimits, RetentionPace
from actors.core.partitioning import Placement
from actors.host.host_finder import HostFinder
from actors.host.identity_host import HostOptions
from actors.placement.dedication import ANY_LOAD_PER_S, DedicationRules
from eventstore.log.host_leases import HostLeases
from eventstore.stores.open_log import open_host_leases
from http_edge.settings.settings import Settings


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
    return settings.limits.dedicate_above_commands_per_s if settings.has_placer else 0


def dedication_rules(settings: Settings) -> DedicationRules:
    """The rules of a placer: the shape of the log, and when to dedicate identities."""
    limits = settings.limits
    return DedicationRules(
        shards=settings.shards,
        databases=len(settings.log_dsns),
        silent_s_max=limits.host_lease_s,
        identities_max=limits.dedicated_max,
        above_per_s=dedicate_above_per_s(settings),
        quiet_s=limits.dedicated_quiet_s,
        named=frozenset(settings.dedicated_dids),
    )


def host_finder(settings: Settings) -> HostFinder:
    """A finder of the hosts of the log."""
    return HostFinder([host_leases(settings, place) for place in range(len(settings.log_dsns))])


def host_leases(settings: Settings, database: int = 0) -> HostLeases:
    """The host leases in a database of the log, by its number; this does not connect."""
    lease_s = settings.limits.host_lease_s
    return open_host_leases(settings.log_dsns[database], settings.postgres.bounds, lease_s=lease_s)


def host_options(settings: Settings, index: int) -> HostOptions:
    """The options of the host with this index in the node's ``Placement.host_names_on``.

    They name no partitions if there is a placer: then the placer assigns them.
    """
    limits, retention, placement = settings.limits, settings.retention, placement_of(settings)
    name = placement.host_names_on(settings.node or "")[index]
    return HostOptions(
        name=name,
        dsn=settings.log_dsns[placement.database_of_host(name)],
        postgres=settings.postgres.bounds,
        allow_unsafe=settings.postgres.unsafe_ok,
        partitions=[] if settings.has_placer else placement.partitions_of(index),
        node=settings.node or "",
        is_placed=settings.has_placer,
        lease_s=limits.host_lease_s,
        address=settings.host_address,
        shards=settings.shards,
        limits=HostLimits(
            timestamp_window_ms=settings.protocol.timestamp_window_ms,
            nonces_per_shard_max=limits.nonces_per_shard_max,
            unproven_nonces_max=limits.unproven_nonces_max,
            transaction_work_max=limits.transaction_work_max,
            costly_work_max=limits.costly_work_max,
            per_sender_per_s=settings.rates.per_sender_per_s,
            burst_s=settings.rates.burst_s,
            keys_max=settings.rates.keys_max,
            gather_s_max=0.0 if settings.log_dsn.startswith("sqlite:") else limits.gather_s_max,
            pages_bytes_max=limits.pages_bytes_max,
            active_identities_max=limits.active_identities_max,
            active_bytes_max=limits.active_bytes_max,
            identity_idle_s=limits.identity_idle_s,
            snapshot_after_events=limits.snapshot_after_events,
            free_bytes_min=limits.free_bytes_min,
            dedicate_above_commands_per_s=dedicate_above_per_s(settings),
            identity=_identity_limits(settings),
            retention=RetentionPace(
                look_s=retention.look_s,
                pause_s=retention.pause_s,
                identities_max=retention.identities_per_step_max,
                records_max=retention.records_per_step_max,
            ),
        ),
    )


def _identity_limits(settings: Settings) -> IdentityLimits:
    limits, didcomm, retention = settings.limits, settings.didcomm, settings.retention
    return IdentityLimits(
        queue_messages_max=limits.queue_messages_max,
        queue_bytes_max=limits.queue_bytes_max,
        queue_sender_share_max=limits.queue_sender_share_max,
        contract_requests_max=limits.contract_requests_max,
        contract_requests_bytes_max=limits.contract_requests_bytes_max,
        contracts_max=limits.contracts_max,
        contracts_bytes_max=limits.contracts_bytes_max,
        saved_events_max=limits.saved_events_max,
        saved_events_bytes_max=limits.saved_events_bytes_max,
        identity_bytes_max=limits.identity_bytes_max,
        public_events_max=limits.public_events_max,
        public_events_bytes_max=limits.public_events_bytes_max,
        message_bytes_max=didcomm.message_bytes_max,
        queue_age_s_max=retention.messages_s,
        contract_requests_age_s_max=retention.contract_requests_s,
        expired_contracts_age_s_max=retention.expired_contracts_s,
        unregistered_age_s_max=retention.unregistered_s,
        public_events_age_s_max=retention.public_events_s,
        idle_agents_age_s_max=retention.idle_agents_s,
        keylist_keys_max=didcomm.keylist_keys_max,
        live_in_flight_max=didcomm.live_in_flight_max,
        leased_max=didcomm.leased_max,
    )
