"""Faults are planned here by the thousand: what the hosts say about them is not shown."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def quiet_hosts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "actors")
