"""The checks of a log before it is served: that it is safe, whole, and of this mediator."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from actors.core.identity import FOLD
from actors.host.clock import new_id
from eventstore.log import databases
from eventstore.log.errors import (
    LockedElsewhere,
    LogError,
    LogUnavailable,
    RowsStay,
    SeamRefused,
    UnsafeLog,
    WrongDatabase,
)
from eventstore.log.event_log import EventLog, LogReader
from eventstore.log.host_leases import LEASE_S_MAX, HostLease, HostLeases, node_protocol
from eventstore.log.public_key import PublicKey
from eventstore.log.seam import SEAM, read_seam
from eventstore.stores.advisory_lock import advisory_lock
from eventstore.stores.open_log import open_log
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.crypto.private_files import KeyFileRefused
from http_edge.server.cluster_node import ENDING_S_MAX
from http_edge.server.exits import UNUSABLE_LOG, Endings, Exit, Stop, ended_by
from http_edge.server.hosts import host_leases, placement_of
from http_edge.server.start_notes import log_id_path, noted
from http_edge.settings.settings import Settings

MEDIATOR_KEY: Final = "mediator_key"
"""The name, in the settings of a log, of the public key that the log belongs to."""
_ALONE: Final = "mediator"
_NOTING: Final = "notes of a start"
_POLL_S: Final = 0.1
_TRIES_MAX: Final = 50
"""To note in turn, which takes milliseconds."""
_ENDINGS: Final[Endings] = {
    WrongDatabase: (Exit.USAGE, "{}.",
        "Name all databases of the log with --log, in the order in which it was created."),
    UnsafeLog: (Exit.UNSAFE, "{}.",
        "Correct this, or, for experiments, use --set postgres.unsafe_ok=on."),
    **UNUSABLE_LOG,
    LogError: (Exit.UNREACHABLE, "The event log cannot be opened: {}.", "See --log."),
}  # fmt: skip
"""Why a log cannot be served."""
_LOG = logging.getLogger(__name__)


def check_log(settings: Settings) -> dict[int, str]:
    """Open the log once, and check it against the settings and the keys.

    Return the numbers of the databases that are away, each with the reason: a node of a cluster
    starts without them, unless the log is new or all are away.

    Raises:
        Stop: the log cannot be served with these settings; says why and what to do.
    """
    if settings.node is not None and settings.node_address is None:
        raise Stop(
            Exit.USAGE,
            "node is set, but without node_address no other node would reach this one.",
            "Set node_address to an address of this machine or to auto, or remove node.",
        )
    if settings.archive.enabled and not settings.lets_rows_leave:
        raise Stop(
            Exit.USAGE,
            "archive.enabled is on, but without export.to no row leaves a log in PostgreSQL.",
            "Set export.to to a place that every node can reach, or remove archive.enabled.",
        )
    logs, away = dict[int, EventLog](), dict[int, LogUnavailable]()
    with ended_by(_ENDINGS), contextlib.ExitStack() as opened:
        for number in range(len(settings.log_dsns)):
            try:
                logs[number] = opened.enter_context(_opened(settings, number))
            except LogUnavailable as error:
                has_others = settings.node_address is not None and len(settings.log_dsns) > 1
                if not has_others or not _is_away(settings, number, error):
                    raise
                away[number] = error
        if away and not any(databases.COUNT in log.settings() for log in logs.values()):
            raise next(iter(away.values()))
        _check(settings, logs)
    return {number: str(error) for number, error in away.items()}


def note_start(settings: Settings, away: Container[int]) -> Sequence[str]:
    """Note what the next start compares, in the databases of the log that are not ``away``.

    For a start that has passed all its checks. Return the mediator's former URLs.

    Raises:
        Stop: a database has failed since the checks.
    """
    numbers = [number for number in range(len(settings.log_dsns)) if number not in away]
    with ended_by(_ENDINGS), contextlib.ExitStack() as opened:
        logs = {number: opened.enter_context(_opened(settings, number)) for number in numbers}
        opened.enter_context(_turn(settings, numbers[0]))
        return noted(settings, logs)


@contextlib.contextmanager
def _turn(settings: Settings, number: int) -> Iterator[None]:
    """Let the nodes of a cluster note one after the other: each adds to what it has read.

    One that hangs meanwhile holds up no other for long.
    """
    with contextlib.ExitStack() as held:
        for _ in range(_TRIES_MAX if settings.node_address is not None else 0):
            lock = advisory_lock(settings.log_dsns[number], _NOTING, settings.postgres.bounds)
            try:
                held.enter_context(lock)
                break
            except LockedElsewhere:
                time.sleep(_POLL_S)
        yield


def why_unserved(settings: Settings, number: int) -> str | None:
    """Check a database that was away as a start does; why it cannot be served, None if it can.

    It notes in it what a start would have noted. Another database tells which log it has to belong
    to.
    """
    others = [other for other in range(len(settings.log_dsns)) if other != number]
    try:
        with ended_by(_ENDINGS), contextlib.ExitStack() as opened:
            logs = {number: opened.enter_context(_opened(settings, number))}
            for other in others:
                try:
                    logs[other] = opened.enter_context(_opened(settings, other))
                    break
                except LogUnavailable:
                    if other == others[-1]:
                        raise
            _check(settings, logs)
            opened.enter_context(_turn(settings, number))
            noted(settings, {number: logs[number]})
    except Stop as stop:
        reason = stop.__cause__ if isinstance(stop.__cause__, LogUnavailable) else stop.message
        return str(reason)
    except Exception as error:  # noqa: BLE001 - whatever it is, it may pass
        return f"{type(error).__name__}: {error}"
    return None


def _is_away(settings: Settings, number: int, error: LogUnavailable) -> bool:
    """Whether a database that cannot be opened may be there later, with these settings."""
    # Imported here, so that a process without PostgreSQL needs no driver.
    from eventstore.stores.postgres_connections import is_refused  # noqa: PLC0415

    dsn, bounds = settings.log_dsns[number], settings.postgres.bounds
    return type(error) is LogUnavailable and not is_refused(dsn, bounds)


def _opened(settings: Settings, number: int) -> contextlib.closing[EventLog]:
    postgres = settings.postgres
    return contextlib.closing(
        open_log(
            settings.log_dsns[number], allow_unsafe=postgres.unsafe_ok, postgres=postgres.bounds
        )
    )


def _check(settings: Settings, logs: Mapping[int, EventLog]) -> None:
    placement = placement_of(settings)
    own = [placement.shards_of(number) for number in range(placement.databases)]
    databases.agree(logs, own, new_id=new_id())
    if 0 in logs:
        _check_emptiness(settings, logs[0])
    for log in logs.values():
        _check_constants(log, settings)
        _check_keys(settings, log)
    if settings.node is not None or not settings.log_dsn.startswith("sqlite:"):
        for number in logs:
            _check_nodes(settings, number)
    each = settings.each_database()
    for number, log in logs.items():
        _check_states(log, each[number])


def _check_emptiness(settings: Settings, log: LogReader) -> None:
    """Refuse an empty log if another one was served here before: that one was lost."""
    path = log_id_path(settings)
    if path.exists() and not log.position() and "log_id" not in log.settings():
        raise Stop(
            Exit.UNSAFE,
            "The log is empty, but this data directory has served another log:"
            f" {path.read_text(errors='replace').strip()}.",
            "Restore it from a backup, or with poste restore. To begin a new log anyway,"
            f" remove {path}.",
        )


def _check_constants(log: EventLog, settings: Settings) -> None:
    for name, value in (
        ("shards", str(settings.shards)),
        ("mediator_did", settings.mediator_did),
    ):
        fixed = log.setting(name, value)
        if fixed != value:
            option = "--shards" if name == "shards" else "--did"
            raise Stop(
                Exit.USAGE,
                f"The log was created with {name} {fixed}, not {value}.",
                f"It is fixed for the life of a log. Set {option} {fixed}, or begin a new log in"
                " another directory with --data-dir.",
            )


def _check_nodes(settings: Settings, database: int) -> None:
    """Refuse to start beside what cannot share the log; first let the leases of killed ones end.

    Raises:
        Stop: such nodes, or another mediator, are running.
        LogUnavailable: the host leases cannot be read.
    """
    with contextlib.closing(host_leases(settings, database)) as leases:
        living, left_s = _living(leases)
        until_s = time.monotonic() + left_s + ENDING_S_MAX
        while (refusal := _refusal(settings, living)) is not None:
            if time.monotonic() > until_s:
                raise refusal
            time.sleep(_POLL_S)
            living, _ = _living(leases)


def _living(leases: HostLeases) -> tuple[Sequence[HostLease], float]:
    """The hosts that have a lease, and for how many seconds at most.

    A longer lease than any is that of a lost host, from before the clock was set back.
    """
    found = leases.living()
    now_s = leases.clock_s()  # after them: a lease that was renewed meanwhile is no longer than any
    if now_s is None:
        now_s = time.monotonic()
    living = [one for one in found if one.ends_s <= now_s + LEASE_S_MAX]
    return living, max((one.ends_s - now_s for one in living), default=0.0)


def _refusal(settings: Settings, living: Sequence[HostLease]) -> Stop | None:
    """Why a mediator does not start beside these hosts; None if it does."""
    own = node_protocol(len(settings.log_dsns))
    if others := {one.node or one.name for one in living if one.protocol != own}:
        return Stop(
            Exit.USAGE,
            "Nodes of a release that cannot run beside this one are running:"
            f" {', '.join(sorted(others))}.",
            "Stop them all, then start the nodes of this release.",
        )
    if any(settings.node_address is None or not one.node for one in living):
        # Hosts of a mediator without nodes take their shards from whichever host has them.
        return _beside_another()
    return None


def _beside_another() -> Stop:
    return Stop(
        Exit.BUSY,
        "Another mediator is running on this log, and they are not nodes of one cluster.",
        "Stop it first, or set node_address for both.",
    )


@contextlib.contextmanager
def only_mediator(settings: Settings) -> Iterator[None]:
    """Keep mediators that start at the same time, before they have leases, from each other's log.

    The lock is only for the start: it is not taken again if the database ends its session.

    Raises:
        Stop: another one has started; or the database cannot be reached.
    """
    with contextlib.ExitStack() as held:
        if settings.node_address is None:
            lock = advisory_lock(settings.log_dsns[0], _ALONE, settings.postgres.bounds)
            with ended_by(_ENDINGS):
                try:
                    held.enter_context(lock)
                except LockedElsewhere as error:
                    raise _beside_another() from error
        yield


def _check_states(log: EventLog, settings: Settings) -> None:
    """Check that this release can read the states that stand for archived rows.

    If the archive is in a folder that is empty or not there, log a warning.

    After an upgrade with another layout of states, make them anew from the archive, before the
    mediator serves anything.

    Raises:
        Stop: the states cannot be made from the archive.
    """
    text, place = log.settings().get(SEAM), settings.archive_place
    if text is None:
        return
    if "://" not in place and not any(Path(place).glob("*")):
        about = {"place": place}
        _LOG.warning(
            "rows have left the log, but their archive is not where it should be", extra=about
        )
    if read_seam(text).fold == FOLD:
        return
    # Import pyarrow only now: it takes 48 MB of memory.
    from actors.archive.archived_states import fold_again  # noqa: PLC0415
    from eventstore.parquet.errors import ExportError  # noqa: PLC0415
    from eventstore.parquet.files import open_place  # noqa: PLC0415

    _LOG.info("remaking the states that replace archived rows", extra={"place": place})
    try:
        keys = load_or_create(settings.keys_path)
        made = fold_again(log, open_place(place), keys, settings.mediator_did)
    except (ExportError, RowsStay, SeamRefused) as error:
        raise Stop(
            Exit.UNSAFE,
            "The states that replace archived rows were made by another release and cannot"
            f" be remade from {place}: {error}.",
            "Restore the archive from a backup, or use the earlier release. See: poste verify.",
        ) from error
    _LOG.info("remade the states that replace archived rows", extra={"states": made})


def _check_keys(settings: Settings, log: EventLog) -> None:
    """Check the keys against the log's, or make keys for a log that has none yet."""
    path, known = settings.keys_path, log.settings().get(MEDIATOR_KEY)
    if known is not None and not path.exists():
        raise Stop(
            Exit.UNSAFE,
            f"The key file {path} is missing, but the log belongs to the key {known}.",
            "Restore it from a backup, or name it with --set keys_file=PATH.",
        )
    try:
        keys = load_or_create(path)
    except KeyFileRefused as error:
        raise Stop(Exit.UNSAFE, str(error)) from error
    own = PublicKey(keys.signing_public).text
    known = log.setting(MEDIATOR_KEY, own)
    if known != own:
        raise Stop(
            Exit.UNSAFE,
            f"The log belongs to the mediator with the key {known}, but {path} holds {own}.",
            "Restore the key file of this log from a backup, the same on every node:"
            " contracts are bound to it.",
        )
