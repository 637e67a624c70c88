"""Settings that each fit alone and could not do together what they say are refused."""

from __future__ import annotations

import pytest

from http_edge.settings.sources import SettingRefused, load_settings

DIDS = [f"did:x:{number}" for number in range(3)]


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


def test_as_many_identities_as_may_be_dedicated_can_be_named_each_more_than_once() -> None:
    given = {"dedicated_dids": ",".join(DIDS + DIDS), "limits.dedicated_max": "3"}
    assert len(load_settings(given, {}).settings.dedicated_dids) == 6
