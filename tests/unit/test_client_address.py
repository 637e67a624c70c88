"""The rate limit key of an address, however it is written."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from aiohttp.test_utils import make_mocked_request

from http_edge.listener.client_address import ClientAddress

PROXIES = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("203.0.113.7:1024", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::1%eth0", "2001:db8::/64"),
        ("[2001:db8::1]", "2001:db8::/64"),
        ("[2001:db8::1]:1024", "2001:db8::/64"),
        ("no address", "no address"),
        ("", ""),
        ("10.1.2.3", None),
        ("::ffff:10.1.2.3", None),
        ("fd00::1%eth0", None),
    ],
)
def test_an_address_has_one_key_and_a_proxy_none(host: str, key: str | None) -> None:
    assert ClientAddress(PROXIES).of_connection(host) == key
    if key is not None:
        assert ClientAddress([]).of_connection(host) == key


@pytest.mark.parametrize(
    ("remote", "forwarded", "key"),
    [
        ("", "203.0.113.1", ""),
        ("203.0.113.9", "203.0.113.1", "203.0.113.9"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.1", "203.0.113.1"),
        ("10.0.0.1", "203.0.113.1, 10.0.0.2", "203.0.113.1"),
        ("10.0.0.1", "203.0.113.1, 203.0.113.2, fd00::2, 10.0.0.2", "203.0.113.2"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "203.0.113.1, unknown, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "203.0.113.1 , , ", "203.0.113.1"),
    ],
)
def test_the_client_is_the_last_hop_that_is_none_of_our_proxies(
    remote: str, forwarded: str, key: str
) -> None:
    request = make_mocked_request("GET", "/", {"X-Forwarded-For": forwarded})
    assert ClientAddress(PROXIES).of(request.clone(remote=remote)) == key
