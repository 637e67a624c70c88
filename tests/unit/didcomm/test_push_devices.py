"""The device of an agent, which only the agent itself sets, reads and removes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from http_edge.didcomm.protocols.problems import Problem
from http_edge.didcomm.protocols.push_notifications import PushNotifications
from tests.unit.didcomm.requests import Agents, agents_of, message, outcome, written

FCM = PushNotifications("fcm").family()
SET = "push-notifications-fcm/1.0/set-device-info"
GET = "push-notifications-fcm/1.0/get-device-info"


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    async with agents_of(tmp_path) as agents:
        yield agents


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        (SET, {"device_token": "token", "device_platform": "android"}),
        (SET, {"device_token": None, "device_platform": None}),
        (GET, {}),
    ],
)
async def test_a_stranger_has_no_device_to_set_remove_or_read(
    agents: Agents, kind: str, members: dict[str, str | None]
) -> None:
    refused = await outcome(FCM, message(kind, **members), identities=agents)
    assert refused.refused == Problem.NOT_CONNECTED.refused
    report: Any = written(refused.reply, message(kind))
    assert report["description"]["code"] == Problem.NOT_CONNECTED.value
