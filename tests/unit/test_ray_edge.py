"""What happens on the event loop of an edge's process."""

from __future__ import annotations

import asyncio
import os

import pytest

from http_edge.server.ray_edge import _on_loop_fault


async def test_an_edge_ends_when_its_connections_run_out_of_memory_and_for_no_other_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_on_loop_fault)
    for error in (ConnectionResetError(), None):
        loop.call_exception_handler({"message": "a fault", "exception": error})
    assert not codes
    loop.call_exception_handler({"message": "a fault", "exception": MemoryError()})
    assert codes == [70]
