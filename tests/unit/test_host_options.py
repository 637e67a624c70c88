"""What the settings say reaches the hosts and the placer."""

from __future__ import annotations

from typing import Any

import pytest

from actors.core.partitioning import Placement
from http_edge.server.hosts import dedication_rules, host_finder, host_options
from http_edge.settings.settings import Section, Settings

CLUSTER = Settings(log="postgresql://host/name", node="one", node_address="127.0.0.1")
ODD = 77
ELSEWHERE = {"identity", "retention", "commit_delay_s_max"}
"""Limits that other tests of this file are about."""
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


def test_a_host_has_each_bound_of_the_database_from_the_setting_of_its_name() -> None:
    other = _other(CLUSTER.postgres)
    changed = CLUSTER.postgres.model_copy(update=other)
    bounds = host_options(CLUSTER.model_copy(update={"postgres": changed}), 0).postgres
    assert {name: getattr(bounds, name) for name in bounds.__struct_fields__} == {
        name: other.get(name, False) for name in bounds.__struct_fields__
    }


def test_a_server_that_loses_commits_is_used_only_if_the_operator_says_so() -> None:
    careless = CLUSTER.postgres.model_copy(update={"unsafe_ok": True})
    for postgres in (CLUSTER.postgres, careless):
        options = host_options(CLUSTER.model_copy(update={"postgres": postgres}), 0)
        assert options.allow_unsafe is postgres.unsafe_ok


def test_a_host_looks_for_what_is_due_as_often_as_the_settings_say() -> None:
    other = _other(CLUSTER.retention)
    changed = CLUSTER.retention.model_copy(update=other)
    pace = host_options(CLUSTER.model_copy(update={"retention": changed}), 0).limits.retention
    assert {name: getattr(pace, name) for name in pace.__struct_fields__} == {
        name: other[name] for name in pace.__struct_fields__
    }


def test_a_host_waits_for_more_commands_where_a_commit_crosses_a_network() -> None:
    for settings, waits_s in ((CLUSTER, ODD), (Settings(), 0)):
        limits = settings.limits.model_copy(update={"commit_delay_s_max": ODD})
        changed = settings.model_copy(update={"limits": limits})
        assert host_options(changed, 0).limits.commit_delay_s_max == waits_s


def test_the_placer_dedicates_identities_and_waits_for_hosts_as_the_settings_say() -> None:
    other = _other(CLUSTER.limits)
    limits = CLUSTER.limits.model_copy(update=other)
    settings = CLUSTER.model_copy(update={"limits": limits})
    rules = dedication_rules(settings, 0)
    assert (rules.identities_max, rules.quiet_s, rules.silent_s_max, rules.above_per_s) == (
        other["dedicated_max"],
        other["dedicated_quiet_s"],
        other["host_lease_s"],
        other["dedicate_above_commands_per_s"],
    )
    options = host_options(settings, 0)
    assert options.lease_s == rules.silent_s_max
    assert options.limits.dedicate_above_commands_per_s == rules.above_per_s


@pytest.mark.parametrize(
    "said",
    [
        {"node_address": "10.0.0.1"},
        {"placement": "dedicated"},
        {"dedicated_dids": ["did:example:busy"]},
        {"limits": {"dedicate_above_commands_per_s": ODD}},
    ],
)
def test_every_setting_that_dedicates_identities_has_a_placer_on_one_machine_too(
    said: dict[str, Any],
) -> None:
    assert not Settings().has_placer
    settings = Settings.model_validate(said)
    assert settings.has_placer
    assert host_options(settings, 0).partitions is None


def test_a_database_has_a_quarter_of_a_lease_to_show_that_it_is_there() -> None:
    for lease_s, waits_s in ((20, 5), (2, 1)):
        limits = CLUSTER.limits.model_copy(update={"host_lease_s": lease_s})
        finder = host_finder(CLUSTER.model_copy(update={"limits": limits}), tuple)
        assert finder._answer_s_max == waits_s


def test_each_of_several_databases_has_its_part_of_the_dedicated_identities() -> None:
    placement = Placement(CLUSTER.shards, hosts=1, databases=2)
    dids = [f"did:example:{number}" for number in range(8)]
    settings = CLUSTER.model_copy(
        update={
            "log": "postgresql://a postgresql://b",
            "dedicated_dids": (*dids,),
            "limits": CLUSTER.limits.model_copy(update={"dedicated_max": 3}),
        }
    )
    parts = [dedication_rules(settings, database) for database in range(2)]
    assert [part.identities_max for part in parts] == [2, 1], "no more than three together"
    assert parts[0].named | parts[1].named == {*dids}
    for database, part in enumerate(parts):
        assert {placement.database_of(did) for did in part.named} == {database}
