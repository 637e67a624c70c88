"""Settings by which the mediator could not do what they say are refused, alone or together."""

from __future__ import annotations

import re

import pytest

from eventstore.stores.sqlite_connections import BUSY_TIMEOUT_S
from http_edge.settings.reference import every_setting
from http_edge.settings.sources import SettingRefused, load_settings
from http_edge.settings.value_types import KIB, MIB

DIDS = [f"did:x:{number}" for number in range(3)]

SWITCHED_OFF_BY_0 = "audit.refusals_period_s"
TIMES = [
    name
    for name, setting in every_setting().items()
    if re.search("_s(_max|_min)?$", name)
    and not name.endswith("per_s_max")
    and (setting.kind.get("minimum") != 0 or name == SWITCHED_OFF_BY_0)
]


@pytest.mark.parametrize("name", TIMES)
def test_no_time_that_passes_before_something_ends_or_recurs_is_next_to_nothing(name: str) -> None:
    with pytest.raises(SettingRefused, match=f"^{name} from command line: expected "):
        load_settings({name: "0.009"}, {})


def test_the_shortest_times_are_those_that_the_reference_names() -> None:
    assert len(TIMES) > 30
    load_settings({"outbound.retry_s_min": "0.01", SWITCHED_OFF_BY_0: "0.01"}, {})
    load_settings({SWITCHED_OFF_BY_0: "0"}, {})
    assert every_setting()["limits.keepalive_s"].expected == "a number from 0.01 to 3_600"


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (
            {"dedicated_dids": ",".join(DIDS), "limits.dedicated_max": "2"},
            "dedicated_dids from command line: expected at most 2 (limits.dedicated_max)",
        ),
        (
            {"dedicated_dids": DIDS[0], "limits.dedicated_max": "0"},
            "dedicated_dids from command line: expected at most 0 (limits.dedicated_max)",
        ),
        (
            {"placement": "dedicated", "limits.dedicated_max": "0"},
            "limits.dedicated_max from command line: expected more than 0 with placement dedicated",
        ),
    ],
)
def test_identities_that_could_have_no_dedicated_host_are_refused(
    given: dict[str, str], refusal: str
) -> None:
    with pytest.raises(SettingRefused) as refused:
        load_settings(given, {})
    assert str(refused.value) == refusal


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({}, True),
        ({"placement": "dedicated"}, False),
        ({"node_address": "10.0.0.1"}, False),
        ({"node_address": "10.0.0.1", "limits.dedicated_max": "0"}, True),
        ({"placement": "dedicated", "log": "sqlite:///srv/log.db"}, True),
        ({"placement": "dedicated", "limits.did_bytes_max": "2600"}, True),
    ],
)
def test_a_did_that_no_row_of_a_dedicated_host_can_name_is_refused(
    given: dict[str, str], *, fits: bool
) -> None:
    given = {"log": "postgresql://db/log", "limits.did_bytes_max": "2601"} | given
    if fits:
        load_settings(given, {})
        return
    with pytest.raises(SettingRefused) as refused:
        load_settings(given, {})
    assert str(refused.value) == (
        "limits.did_bytes_max from command line:"
        " expected at most 2_600 for dedicated hosts in PostgreSQL"
    )


@pytest.mark.parametrize(
    ("smaller", "larger", "bytes_max", "divided"),
    [
        ("limits.contract_bytes_max", "limits.contracts_bytes_max", 64 * KIB, ""),
        ("limits.contract_request_bytes_max", "limits.contract_requests_bytes_max", 64 * KIB, ""),
        ("limits.saved_event_bytes_max", "limits.saved_events_bytes_max", MIB, ""),
        ("limits.public_event_bytes_max", "limits.public_events_bytes_max", MIB, ""),
        ("limits.did_bytes_max", "limits.header_bytes_max", 4 * KIB, " divided by 3"),
    ],
)
def test_what_may_be_as_large_as_a_setting_says_has_room_under_the_others(
    smaller: str, larger: str, bytes_max: int, divided: str
) -> None:
    given = {smaller: str(bytes_max), larger: str(bytes_max * (3 if divided else 1))}
    load_settings(given, {})
    with pytest.raises(SettingRefused) as refused:
        load_settings(given | {smaller: str(bytes_max + 1)}, {})
    assert str(refused.value) == f"{smaller} from command line: expected at most {larger}{divided}"


@pytest.mark.parametrize("name", ["limits.body_bytes_max", "didcomm.message_bytes_max"])
def test_no_bound_refuses_what_poste_demo_sends(name: str) -> None:
    load_settings({name: str(64 * KIB)}, {})
    with pytest.raises(SettingRefused, match=f"^{name} from command line: expected a whole number"):
        load_settings({name: str(64 * KIB - 1)}, {})


def test_a_setting_below_several_times_another_that_was_not_set_is_refused_by_its_own_name() -> (
    None
):
    with pytest.raises(SettingRefused) as refused:
        load_settings({"limits.socket_buffer_bytes_max": str(3 * MIB)}, {})
    assert str(refused.value) == (
        "limits.socket_buffer_bytes_max from command line:"
        " expected at least 2 times didcomm.delivery_bytes_max"
    )


def test_as_many_identities_as_may_be_dedicated_can_be_named_each_more_than_once() -> None:
    given = {"dedicated_dids": ",".join(DIDS + DIDS), "limits.dedicated_max": "3"}
    assert len(load_settings(given, {}).settings.dedicated_dids) == 6


@pytest.mark.parametrize(
    ("log", "settled_s", "fits"),
    [
        ("sqlite:///srv/log.db", 2 * BUSY_TIMEOUT_S, False),
        ("sqlite:///srv/log.db", 30, True),
        ("postgresql://a", 14, False),
        ("postgresql://a", 15, True),
        ("postgresql://user:a,b@a:1,b:2,c:3/d", 24, False),
        ("postgresql://user:a,b@a:1,b:2,c:3/d", 25, True),
        ("postgresql:///d?host=a,b&hostaddr=::1,::2", 19, False),
        ("postgresql:///d?host=a,b&hostaddr=::1,::2", 20, True),
        ("postgresql://a/d postgresql://b,c/d", 19, False),
        ("postgresql://a/d postgresql://b,c/d", 20, True),
    ],
)
def test_no_export_is_called_complete_until_a_time_whose_appends_may_still_wait(
    log: str, settled_s: int, *, fits: bool
) -> None:
    given = {"log": log, "export.settled_s": str(settled_s)}
    if fits:
        assert load_settings(given, {}).settings.export.settled_s == settled_s
    else:
        with pytest.raises(SettingRefused, match=r"^export.settled_s from command line"):
            load_settings(given, {})


def test_an_export_waits_for_appends_as_long_as_these_may_for_a_connection() -> None:
    given = {"log": "postgresql://a", "export.settled_s": "30", "postgres.connect_s_max": "13"}
    with pytest.raises(SettingRefused) as refused:
        load_settings(given, {})
    assert str(refused.value) == (
        "export.settled_s from command line: expected at least 31 with 2 times"
        " postgres.connect_s_max"
    )
    load_settings(given | {"export.settled_s": "31"}, {})
