"""What the settings say reaches the hosts and the placer."""

from __future__ import annotations

from typing import Any

import pytest

from http_edge.server.hosts import dedication_rules, host_options
from http_edge.settings.settings import Section, Settings

ODD = 77
CLUSTER = Settings(log="postgresql://host/name", node="one", node_address="127.0.0.1")


def odd(section: Section) -> dict[str, Any]:
    """A value that is no default, for each setting of a section."""
    return {"update": dict.fromkeys(type(section).model_fields, ODD)}


@pytest.mark.parametrize("name", ["limits", "protocol", "rates", "didcomm", "postgres"])
def test_a_setting_reaches_the_hosts_by_its_name(name: str) -> None:
    section = getattr(CLUSTER, name)
    options = host_options(CLUSTER.model_copy(update={name: section.model_copy(**odd(section))}), 0)
    reached: set[str] = set()
    of_hosts = options.limits, options.limits.identity
    for struct in (options.postgres,) if name == "postgres" else of_hosts:
        own = type(section).model_fields.keys() & set(struct.__struct_fields__)
        assert {field: getattr(struct, field) for field in own} == dict.fromkeys(own, ODD)
        reached |= own
    assert reached


def test_a_server_that_loses_commits_is_used_only_if_the_operator_says_so() -> None:
    careless = CLUSTER.postgres.model_copy(update={"unsafe_ok": True})
    for postgres in (CLUSTER.postgres, careless):
        options = host_options(CLUSTER.model_copy(update={"postgres": postgres}), 0)
        assert options.allow_unsafe is postgres.unsafe_ok


def test_the_placer_dedicates_as_many_identities_as_the_settings_say() -> None:
    limits = CLUSTER.limits.model_copy(update={"dedicated_max": ODD})
    rules = dedication_rules(CLUSTER.model_copy(update={"limits": limits}))
    assert rules.identities_max == ODD
