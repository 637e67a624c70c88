"""The servers that are measured: ``poste serve`` of any checkout, or the edge alone."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from http_edge.server.exits import Stop
from tests.bench.processes import ProcessTree
from tests.cluster.server import Server, serve_command

UNLIMITED: Final = {
    # One address and few senders make all of the load; rates are tested elsewhere.
    "rates.per_address_per_s": "0",
    "rates.per_sender_per_s": "0",
    "rates.public_reads_per_address_per_s": "0",
    "rates.sockets_auth_per_address_per_s": "0",
    "rates.registrations_per_s": "0",
    "rates.registrations_per_address_per_s": "0",
    "didcomm.socket_messages_per_s_max": "10000",
    # Sockets are opened before it is their turn.
    "didcomm.socket_first_message_s": "600",
}
MANY_SOCKETS: Final = {
    "limits.sockets_max": "100000",
    "limits.sockets_per_address_max": "100000",
    "limits.connections_max": "120000",
    "limits.connections_per_address_max": "110000",
}
"""Beyond the defaults; commits that are compared need not know all of these settings."""
_ANSWER_S_MAX: Final = 10.0


@dataclass(slots=True)
class Costs:
    """What a server spent while something ran: CPU seconds, and transactions of its log."""

    cpu_s: float = 0.0
    commits: int = 0


class MeasuredServer(Server):
    """``poste serve`` without limits of rates, on loopback; a context manager.

    ``tree`` is the checkout whose packages run, this one if none is named.
    """

    def __init__(
        self, data_dir: Path, settings: Mapping[str, str] | None = None, *, tree: Path | None = None
    ) -> None:
        super().__init__(data_dir, **{**UNLIMITED, **(settings or {})})
        if tree is not None:
            self.run_from(tree)
            known = _settings_of(tree)
            self._settings = {
                name: value
                for name, value in self._settings.items()
                if name.rpartition(".")[2] in known
            }

    @property
    def tree(self) -> ProcessTree:
        """The server's processes."""
        return ProcessTree(self.pid)

    @contextmanager
    def spending(self) -> Iterator[Costs]:
        """What the server spends while the block runs; filled in when it ends."""
        costs = Costs()
        commits, cpu_s = self._commits(), self.tree.cpu_s()
        yield costs
        costs.cpu_s = self.tree.cpu_s() - cpu_s
        costs.commits = self._commits() - commits

    def _commits(self) -> int:
        """Transactions of the log so far; 0 where it has none."""
        try:
            address, token = self.operators()
            headers = {"Authorization": f"Bearer {token}"}
        except Stop:  # the edge alone, or a commit that answered operators where clients are
            address, headers = self.url, {}
        question = Request(f"{address}/status", headers=headers)  # noqa: S310 - ours
        try:
            with urlopen(question, timeout=_ANSWER_S_MAX) as answer:  # noqa: S310
                found = json.load(answer).get("commits")
        except HTTPError:
            return 0
        return found if isinstance(found, int) else 0


def _settings_of(tree: Path) -> frozenset[str]:
    """The last names of the settings that a checkout has: those made later mean nothing to it."""
    texts = [path.read_text() for path in (tree / "http_edge/settings").glob("*.py")]
    return frozenset(re.findall(r"^    (\w+): ", "".join(texts), re.MULTILINE))


class EdgeAlone(MeasuredServer):
    """The edge with a host that accepts everything and stores nothing; see ``echo_edge``."""

    def command(self) -> Sequence[str]:
        """Its command line."""
        _, _, _, _, *arguments = serve_command(self.data_dir, listen=self._listen, **self._settings)
        return [sys.executable, "-m", "tests.bench.echo_edge", *arguments]
