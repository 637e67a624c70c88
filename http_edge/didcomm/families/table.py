"""All families by the type of a message (RFC 0003: versions; RFC 0348: two spellings, one type)."""

from __future__ import annotations

from collections.abc import Sequence

from http_edge.didcomm.handling import Family, Handler
from http_edge.didcomm.messages import MessageType
from http_edge.didcomm.problems import Problem


class Table:
    """Finds the handler of a message."""

    def __init__(self) -> None:
        """A table without families; see ``add``."""
        self._families: dict[tuple[str, int], Family] = {}
        self._names: set[str] = set()

    def add(self, *families: Family) -> None:
        """Speak these families, too."""
        for family in families:
            self._families[family.name, family.major] = family
            self._names.add(family.name)

    def families(self) -> Sequence[Family]:
        """All families that are spoken, in the order in which they were added."""
        return list(self._families.values())

    def name_of(self, kind: MessageType) -> str:
        """A type as ``protocol/version/message``, with no part that the sender made up.

        The message is left out where it is not known, and all of it where the protocol is not.
        """
        family = self._families.get((kind.family, kind.major))
        if family is None:
            return ""
        minor = kind.minor if kind.minor in family.minors else family.minors[-1]
        protocol = f"{family.name}/{family.major}.{minor}"
        return f"{protocol}/{kind.name}" if kind.name in family.handlers else protocol

    def find(self, kind: MessageType) -> Handler | Problem:
        """The handler of a type, or what the sender did wrong.

        A minor version that is newer than ours is read as ours (RFC 0003).
        """
        family = self._families.get((kind.family, kind.major))
        if family is None:
            known = kind.family in self._names
            return Problem.VERSION_NOT_SUPPORTED if known else Problem.UNKNOWN_MESSAGE_TYPE
        handler = family.handlers.get(kind.name, family.otherwise)
        return Problem.UNKNOWN_MESSAGE_TYPE if handler is None else handler
