"""What operators are answered if a part of the mediator is silent."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from actors.host.port import HostNotReached, HostUnavailable
from http_edge.admin.operators import for_operators


@pytest.mark.parametrize("silent", [HostUnavailable, HostNotReached])
async def test_an_operator_learns_that_a_host_or_the_placer_does_not_answer(
    silent: type[Exception],
) -> None:
    async def ask(_: web.Request) -> web.StreamResponse:
        raise silent

    headers = {"Authorization": "Bearer token"}
    request = make_mocked_request("GET", "/shards", headers=headers)
    answer = await for_operators("token", ask)(request)
    assert answer.status == 503
