"""The limits of a host follow from the settings."""

from __future__ import annotations

from typing import Any

from http_edge.server.hosts import host_options
from http_edge.settings.settings import Section, Settings

ELSEWHERE = {"identity", "retention", "gather_s_max", "dedicate_above_commands_per_s"}
AGES = {
    "queue_age_s_max": "messages_s",
    "contract_requests_age_s_max": "contract_requests_s",
    "expired_contracts_age_s_max": "expired_contracts_s",
    "unregistered_age_s_max": "unregistered_s",
    "public_events_age_s_max": "public_events_s",
    "idle_agents_age_s_max": "idle_agents_s",
}


def _other(section: Section) -> dict[str, Any]:
    """A value for each number of a section, which is neither its default nor that of another."""
    numbers = [(name, value) for name, value in section if type(value) in {int, float}]
    return {name: value + place for place, (name, value) in enumerate(numbers, 1)}


def test_a_host_has_each_limit_from_the_setting_of_its_name() -> None:
    settings = Settings()
    names = ("limits", "protocol", "rates", "didcomm", "retention")
    other = {name: _other(getattr(settings, name)) for name in names}
    changed = {name: getattr(settings, name).model_copy(update=other[name]) for name in names}
    limits = host_options(settings.model_copy(update=changed), 0).limits
    known = other["limits"] | other["protocol"] | other["rates"]
    assert {n: getattr(limits, n) for n in limits.__struct_fields__ if n not in ELSEWHERE} == {
        n: known[n] for n in limits.__struct_fields__ if n not in ELSEWHERE
    }
    known = other["limits"] | other["didcomm"]
    known |= {name: other["retention"][setting] for name, setting in AGES.items()}
    identity = limits.identity
    assert {n: getattr(identity, n) for n in identity.__struct_fields__} == {
        n: known.get(n, 0) for n in identity.__struct_fields__
    }
