"""Discover features 1.0 (RFC 0031) and 2.0 (RFC 0557, DIDComm v2): discloses supported features.

Agents of both generations see the protocols of both generations, all of them and in a fixed order:
a mediator is a public service and has no fingerprint to hide. A query for an unknown feature type
finds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from http_edge.didcomm.envelopes.messages import NEW_PREFIX, OLD_PREFIX, InvalidMember, Json, Reply
from http_edge.didcomm.protocols.invitations import GOAL_CODES
from http_edge.didcomm.protocols.protocol import Family, Outcome, Request, no_answer, refusal

Families: TypeAlias = Callable[[], Sequence[Family]]
"""Returns all supported families; a callable, because these two are among them."""

QUERIES_MAX: Final = 32
"""Queries answered per message; there are fewer feature types than that."""
_NAME: Final = "discover-features"
_ROLES: Final = ("responder",)
_PROTOCOL: Final = "protocol"
_INTEROP_PROFILES: Final = ("AIP2.0/MEDIATE",)
"""RFC 0302: coordinate mediation. The base profile includes credentials, unsupported here."""
_HEADERS: Final = ("delay_milli", "expires_time", "from_prior", "please_ack", "return_route")
"""DIDComm v2 headers, beyond those of every message, that the mediator acts on."""


class DiscoverFeatures:
    """Answers queries for features."""

    def __init__(self, spoken: Families, max_receive_bytes: int) -> None:
        """Disclose the families ``spoken`` and the size of the largest accepted message."""
        self._spoken = spoken
        named = {"aip": _INTEROP_PROFILES, "goal-code": GOAL_CODES, "header": _HEADERS}
        features: list[Json] = [
            {"feature-type": kind, "id": name} for kind, names in named.items() for name in names
        ]
        size: Json = {"feature-type": "constraint", "id": "max_receive_bytes"}
        # The two generations write the value under different names.
        values = dict.fromkeys(("value", "max_receive_bytes"), str(max_receive_bytes))
        self._features = (*features, {**size, **values})

    def families(self) -> tuple[Family, Family]:
        """Return versions 1.0 and 2.0 for the table of families."""
        return (
            Family(_NAME, 1, (0,), _ROLES, {"query": self._query, "disclose": no_answer}),
            Family(
                _NAME,
                2,
                (0,),
                _ROLES,
                {"queries": self._queries, "disclosures": no_answer, "disclose": no_answer},
            ),
        )

    async def _query(self, request: Request) -> Outcome:
        message = request.message
        query = message.text("query")
        if query is None:
            return refusal(InvalidMember("query", "must be a text"))
        found = self._protocols(query, message.type.prefix)
        protocols = [{"pid": pid, "roles": list(family.roles)} for pid, family in found]
        return Outcome(reply=Reply("disclose", {"protocols": protocols}))

    async def _queries(self, request: Request) -> Outcome:
        queries = request.message.items("queries")
        if isinstance(queries, InvalidMember):
            return refusal(queries)
        # By type and id, so that a feature that several queries match is disclosed once.
        found: dict[tuple[object, object], Json] = {}
        for query in queries[:QUERIES_MAX]:
            for feature in self._matching(query):
                found[feature["feature-type"], feature["id"]] = feature
        return Outcome(reply=Reply("disclosures", {"disclosures": list(found.values())}))

    def _matching(self, query: object) -> Iterator[Json]:
        if not isinstance(query, dict):
            return
        kind, match = query.get("feature-type"), query.get("match")
        if not isinstance(match, str):
            return
        if kind == _PROTOCOL:
            for pid, family in self._protocols(match, NEW_PREFIX):
                yield {"feature-type": _PROTOCOL, "id": pid, "roles": list(family.roles)}
        for feature in self._features:
            if feature["feature-type"] == kind and _matches(match, str(feature["id"])):
                yield feature

    def _protocols(self, query: str, prefix: str) -> Iterator[tuple[str, Family]]:
        """Yield the matching protocols, each in the spelling of the query.

        Every family accepts both spellings (RFC 0348). If the query matches both, as ``*`` does,
        ``prefix`` decides.
        """
        spellings = (prefix, OLD_PREFIX if prefix == NEW_PREFIX else NEW_PREFIX)
        for family in self._spoken():
            for minor in family.minors:
                name = f"{family.name}/{family.major}.{minor}"
                pids = (spelling + name for spelling in spellings)
                pid = next((pid for pid in pids if _matches(query, pid)), None)
                if pid is not None:
                    yield pid, family


def _matches(query: str, feature: str) -> bool:
    """Say whether a feature matches; only a final ``*`` is a wildcard."""
    return feature.startswith(query[:-1]) if query.endswith("*") else feature == query
