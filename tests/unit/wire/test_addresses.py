from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_edge.dids import addresses
from http_edge.dids.addresses import CheckedNames, is_own, is_public, may_reach

REFUSED = {
    "this host": "0.0.0.0",  # noqa: S104 - an address to refuse, not to bind
    "this network": "0.1.2.3",
    "loopback": "127.0.0.1",
    "loopback, other": "127.255.255.254",
    "private 10": "10.0.0.1",
    "private 172": "172.16.0.1",
    "private 192": "192.168.1.1",
    "carrier-grade NAT": "100.64.0.1",
    "link-local": "169.254.1.1",
    "cloud metadata": "169.254.169.254",
    "protocol assignments": "192.0.0.8",
    "NAT64 discovery": "192.0.0.170",
    "documentation": "192.0.2.1",
    "6to4 relay": "192.88.99.1",
    "benchmarks": "198.18.0.1",
    "multicast": "224.0.0.1",
    "multicast, global": "239.255.255.255",
    "reserved": "240.0.0.1",
    "broadcast": "255.255.255.255",
    "v6 unspecified": "::",
    "v6 loopback": "::1",
    "v4-compatible": "::8.8.8.8",
    "v4-mapped loopback": "::ffff:127.0.0.1",
    "v4-mapped metadata": "::ffff:169.254.169.254",
    "v4-mapped public": "::ffff:8.8.8.8",
    "v4-translated": "::ffff:0:8.8.8.8",
    "NAT64": "64:ff9b::7f00:1",
    "NAT64 of a public address": "64:ff9b::808:808",
    "NAT64 local": "64:ff9b:1::1",
    "discard": "100::1",
    "Teredo": "2001::1",
    "ORCHID": "2001:20::1",
    "v6 documentation": "2001:db8::1",
    "v6 documentation, second": "3fff::1",
    "6to4 of loopback": "2002:7f00:1::1",
    "6to4 of a public address": "2002:808:808::1",
    "segment routing": "5f00::1",
    "unique local": "fd00::1",
    "v6 metadata": "fd00:ec2::254",
    "v6 link-local": "fe80::1",
    "v6 link-local with a zone": "fe80::1%eth0",
    "v6 site-local": "fec0::1",
    "v6 multicast": "ff02::1",
    "v6 multicast, global": "ff0e::1",
    "unallocated": "4000::1",
    "short form": "127.1",
    "octal": "0177.0.0.1",
    "number": "2130706433",
    "hexadecimal": "0x7f000001",
    "a name": "localhost",
    "nothing": "",
}


@pytest.mark.parametrize("address", REFUSED.values(), ids=REFUSED.keys())
def test_no_address_leads_anywhere_but_to_the_public_network(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "8.8.8.8",
        "100.63.255.255",
        "100.128.0.1",
        "172.15.0.1",
        "192.0.1.1",
        "2606:4700:4700::1111",
        "2a00:1450::1",
        "2003::1",
        "2001:4860:4860::8888",
    ],
)
def test_public_hosts_are_reachable(address: str) -> None:
    assert is_public(address)


@given(st.ip_addresses(v=4))
def test_a_v4_address_is_never_reached_through_v6(address: object) -> None:
    for form in ("::{}", "::ffff:{}", "::ffff:0:{}", "64:ff9b::{}"):
        assert not is_public(form.format(address))


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "127.255.0.1"])
def test_what_stays_on_this_machine_is_its_own(address: str) -> None:
    assert is_own(address)


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1", "1.1.1.1", "::ffff:192.0.2.1"])
def test_an_address_of_another_machine_is_not_own(address: str) -> None:
    assert not is_own(address)


@pytest.mark.parametrize(
    ("route", "v4", "v6"),
    [
        (1, False, False),  # to one other machine
        (2, True, True),  # local
        (3, True, True),  # broadcast
        (5, True, True),  # multicast
        (6, True, True),  # a route that drops all, by its type
        (-errno.ENETUNREACH, False, False),
        (-errno.EHOSTUNREACH, False, False),
        (-errno.EINVAL, False, False),
        (-errno.EACCES, False, False),
        (-errno.EOPNOTSUPP, True, False),  # of a system without IPv6
        (-errno.EPERM, True, True),
    ],
)
def test_an_address_is_own_unless_the_system_says_that_it_leads_elsewhere_or_nowhere(
    monkeypatch: pytest.MonkeyPatch, route: int, *, v4: bool, v6: bool
) -> None:
    monkeypatch.setattr(addresses, "_route_type", lambda _: route)
    assert (is_own("1.1.1.1"), is_own("2606:4700:4700::1111")) == (v4, v6)
    assert may_reach("1.1.1.1", 8_080) is not v4
    assert may_reach("2606:4700:4700::1111", 8_080) is not v6


@pytest.mark.parametrize("reason", [errno.EMFILE, errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT])
def test_an_address_is_taken_for_own_if_the_system_does_not_let_it_be_found_out(
    monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(reason, "no socket")

    monkeypatch.setattr("socket.socket", refused)
    assert not may_reach("1.1.1.1", 8_080)
    assert may_reach("1.1.1.1", 443)


async def test_of_a_name_with_thousands_of_addresses_the_first_are_checked_and_used() -> None:
    checked = []

    async def lookup(_host: str, _port: int) -> list[str]:
        return [f"1.1.{number // 250}.{number % 250 + 1}" for number in range(4_000)]

    def permitted(address: str, port: int) -> bool:
        checked.append((address, port))
        return True

    found = await CheckedNames(lookup, permitted).resolve("agent.example", 8_080)
    assert [(each["host"], each["port"]) for each in found] == checked
    assert len(checked) <= 16
