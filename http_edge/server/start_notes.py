"""What a start notes in the log and in the data directory, and compares with the last one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from actors.host.clock import new_id
from eventstore.log.event_log import EventLog
from http_edge.crypto.private_files import replace_private
from http_edge.settings.settings import Settings
from http_edge.settings.value_types import WILDCARDS, split_listen

FORMER_URLS_MAX: Final = 8
"""Former URLs that are kept; the oldest leaves. Each costs an edge some 10 KiB and 4 ms of its
start. A mediator moves every few years; one that listens on another port at each start would have
any number."""
_URL_MARK: Final = "public_url"
_URLS_MARK: Final = "public_urls"
"""All known URLs as a JSON list, the present one last. Earlier builds write only the other mark."""
_RULES_MARK: Final = "rules_of_nodes"
_LOG = logging.getLogger(__name__)


def noted(settings: Settings, logs: Mapping[int, EventLog]) -> Sequence[str]:
    """Note what the next start compares in these databases of the log, by their numbers.

    All else than URLs is noted in the first database alone. Return the mediator's former URLs.

    Raises:
        LogUnavailable: a database failed.
    """
    urls = _note_urls(settings, logs.values())
    if (log := logs.get(0)) is None:
        return urls
    _warn_of_url(settings, log)
    if settings.node_address is not None:
        _note_rules(settings, log)
    log_id = log.setting("log_id", new_id())
    with contextlib.suppress(OSError):  # a node with keys and log elsewhere may have no folder
        replace_private(log_id_path(settings), f"{log_id}\n".encode())
    return urls


def log_id_path(settings: Settings) -> Path:
    """The file with the id of the log that was served from this data directory."""
    return settings.data_dir / "log-id"


def _note_urls(settings: Settings, logs: Collection[EventLog]) -> Sequence[str]:
    """Note the URL in each of these databases; return the former ones, the oldest first.

    The mediator's DIDs in DIDComm v2 contain its URL, and it has to know those that it had.
    """
    known = dict.fromkeys(url for log in logs for url in _known_urls(log))
    former = [url for url in known if url != settings.url][-FORMER_URLS_MAX:]
    text = msgspec.json.encode([*former, settings.url]).decode()
    for log in logs:
        if log.settings().get(_URLS_MARK) != text:
            log.mark(_URLS_MARK, text)
    return former


def _known_urls(log: EventLog) -> Sequence[str]:
    marks = log.settings()
    urls = msgspec.json.decode(marks.get(_URLS_MARK, "[]"), type=list[str])
    return [*urls, marks[_URL_MARK]] if _URL_MARK in marks else urls


def _warn_of_url(settings: Settings, log: EventLog) -> None:
    """Warn if clients know the mediator by another URL; from now on they know it by this one.

    Warn as well if only clients on this machine can reach the URL, but others may call.
    """
    if settings.public_url is None and split_listen(settings.listen)[0] in WILDCARDS:
        of_did = "; set it before the first start, because a log keeps its DID for ever"
        _LOG.warning(
            "public_url is not set: invitations and %s name localhost, where clients on other"
            " machines do not find this mediator%s",
            *(("DIDs", of_did) if settings.did is None else ("DIDs of DIDComm v2", "")),
        )
    known = log.setting(_URL_MARK, settings.url)
    if known != settings.url:
        _LOG.warning(
            "public_url differs from that of the last start, here or on another node: what is sent"
            " to the DIDs that contain the former one is still read, but clients that know no other"
            " URL reach this mediator only as long as the former one leads here",
            extra={"former": known, "public_url": settings.url},
        )
        log.mark(_URL_MARK, settings.url)


def _note_rules(settings: Settings, log: EventLog) -> None:
    """Warn if this node's rules differ from those of the node that started last, and do harm.

    What one node would keep another one removes for good, and whom one would refuse another one
    admits for good. Each placer undoes what the one before it did, and releases identities whose
    load their hosts do not count. The log keeps a digest of the names, because an erasure would
    not reach them.
    """
    rules = {
        "placement": settings.placement,
        "dedicated_dids": sha256(" ".join(sorted(settings.dedicated_dids)).encode()).hexdigest(),
        "limits.host_lease_s": settings.limits.host_lease_s,
        "limits.dedicate_above_commands_per_s": settings.limits.dedicate_above_commands_per_s,
        "protocol.registration": settings.protocol.registration,
        "didcomm.registration": settings.didcomm.registration,
        "archive.keep_s": settings.archive.keep_s,
        **{f"retention.{name}": value for name, value in settings.retention.model_dump().items()},
    }
    text = msgspec.json.encode(rules).decode()
    known = log.setting(_RULES_MARK, text)
    if known != text:
        former = msgspec.json.decode(known, type=dict[str, object])
        differ = [name for name, value in rules.items() if former.get(name, value) != value]
        if differ:
            _LOG.warning(
                "settings differ from those with which the last node started, and have to be the"
                " same on every node: %s",
                ", ".join(differ),
            )
        log.mark(_RULES_MARK, text)
