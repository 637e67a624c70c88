"""The bounds of an identity and of its host; the edge fills them from the configuration."""

from __future__ import annotations

from typing import Final

import msgspec

TIMESTAMP_WINDOW_MS_MAX: Final = 3_600_000
"""The widest timestamp window that a mediator may be given."""
READING_S_MAX: Final = 1.0
"""After so long, a transaction ends before the first identity that has still to be read."""
DECISION_S_MAX: Final = 5.0
"""From the time that its events carry to its append, a transaction may take so long: a hundred
times what it usually takes. An export counts on it to say until when it is complete."""


class IdentityLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Caps per identity. Reaching one is an explicit refusal; nothing is dropped silently.

    ``message_bytes_max`` applies to envelopes. An age of 0 is no limit. The ages of contracts and
    of unregistered identities count from their expiry. The age of idle agents counts from the last
    sign of life, but not from before ``idle_agents_since_ms``: until then not all signs of life
    were recorded. Bytes other than the queue's are as in ``actors.core.stored_bytes``;
    ``identity_bytes_max`` bounds all kinds together.
    """

    queue_messages_max: int = 10_000
    queue_bytes_max: int = 64 * 1024 * 1024
    queue_sender_share_max: float = 0.5
    contract_requests_max: int = 1_000
    contract_requests_bytes_max: int = 16 * 1024 * 1024
    contracts_max: int = 10_000
    contracts_bytes_max: int = 64 * 1024 * 1024
    saved_events_max: int = 5_000_000
    saved_events_bytes_max: int = 4 * 1024 * 1024 * 1024
    public_events_max: int = 10_000
    public_events_bytes_max: int = 128 * 1024 * 1024
    identity_bytes_max: int = 5 * 1024 * 1024 * 1024
    message_bytes_max: int = 512 * 1024
    queue_age_s_max: int = 7_776_000
    contract_requests_age_s_max: int = 7_776_000
    expired_contracts_age_s_max: int = 0
    unregistered_age_s_max: int = 0
    public_events_age_s_max: int = 0
    idle_agents_age_s_max: int = 0
    idle_agents_since_ms: int = 0
    keylist_keys_max: int = 10_000
    live_in_flight_max: int = 100
    leased_max: int = 1_000


class RetentionPace(msgspec.Struct, frozen=True, kw_only=True):
    """The pace at which a host removes due records by itself, in steps.

    A step takes ``identities_per_step_max`` identities and ``records_per_step_max`` records of
    each. The next step comes ``pause_s`` later, or ``look_s`` later if nothing was left. After the
    clock has stepped ahead, nothing expires by that until it has lasted ``clock_settles_s``.
    """

    clock_settles_s: float = 3_600.0
    look_s: float = 10.0
    pause_s: float = 0.1
    identities_per_step_max: int = 32
    records_per_step_max: int = 64


class HostLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Caps per host process: what is kept in memory and how much one transaction takes.

    If several commands came recently, a transaction waits for more, as long as the last one took
    and at most ``commit_delay_s_max``. The work of one transaction and the rate of one sender (0
    for no limit) are in the units of ``actors.core.cost``; a host keeps the rates of ``keys_max``
    senders. An edge waits for an answer for ``host_call_s_max``.
    """

    timestamp_window_ms: int = 300_000
    host_call_s_max: float = 30.0
    nonces_per_shard_max: int = 200_000
    unproven_nonces_max: int = 200_000
    transaction_work_max: float = 1_024
    costly_work_max: float = 400
    per_sender_per_s: float = 200
    burst_s: float = 5
    keys_max: int = 50_000
    commit_delay_s_max: float = 0.02
    pages_bytes_max: int = 64 * 1024 * 1024
    active_identities_max: int = 20_000
    active_bytes_max: int = 256 * 1024 * 1024
    identity_idle_s: float = 300.0
    snapshot_after_events: int = 200
    free_bytes_min: int = 512 * 1024 * 1024
    dedicate_above_commands_per_s: float = 0
    identity: IdentityLimits = IdentityLimits()
    retention: RetentionPace = RetentionPace()
