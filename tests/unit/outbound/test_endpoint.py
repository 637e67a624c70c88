from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_edge.didcomm.outbound.destinations import hostname_of, is_address, read_endpoint


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("https://agent.example", "agent.example", 443),
        ("HTTP://Agent.Example/in?a=b%20c", "agent.example", 80),
        ("http://agent:8030/in", "agent", 8030),
        ("http://my_agent:8030", "my_agent", 8030),
        ("http://3f2a9c:8030", "3f2a9c", 8030),
        ("ws://agent.example/ws", "agent.example", 80),
        ("wss://agent.example:9443", "agent.example", 9443),
        ("http://192.0.2.1:8030", "192.0.2.1", 8030),
        ("http://[2001:db8::1]:8030/", "2001:db8::1", 8030),
        ("https://agent.example/in?mail=a@b.example", "agent.example", 443),
    ],
)
def test_the_endpoints_that_agents_name_are_read(text: str, host: str, port: int) -> None:
    endpoint = read_endpoint(text)
    assert endpoint is not None
    assert (hostname_of(endpoint), endpoint.port) == (host, port)


def test_a_fragment_is_not_sent() -> None:
    assert str(read_endpoint("https://agent.example/in#part")) == "https://agent.example/in"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "didcomm:transport/queue",
        "ftp://agent.example",
        "file:///etc/passwd",
        "tcp://agent.example:80",
        "unix:///run/socket",
        "//agent.example",
        "agent.example",
        "http:",
        "http:///in",
        "http://",
        "http://:80",
        "http://agent.example:0",
        "http://agent.example:65536",
        "http://agent.example:http",
        "http://user@agent.example",
        "http://user:password@agent.example",
        "http://:password@agent.example",
        "http://127.0.0.1@agent.example",
        "http://agent.example\\@127.0.0.1",
        "http://agent .example",
        "http://agent.example\n",
        "http://agent\t.example",
        "http://agent.example/\x00",
        "http://bücher.example",
        "http://agent.example.",
        "http://agent..example",
        "http://-agent.example",
        "http://127.1",
        "http://2130706433",
        "http://127.0.0.1.",
        "http://0177.0.0.1",
        "http://1.2.3",
        "http://256.256.256.256",
        "http://%31%32%37.0.0.1",
        "http://[::1",
        "http://[fe80::1%25eth0]/",
        "http://[v1.a]/",
        "http://[]@",
        "http://[]",
        "http://[::1]x",
        "http://" + "a" * 64 + ".example",
        "http://agent.example/" + "a" * 2_048,
    ],
)
def test_what_has_more_than_one_reading_is_no_endpoint(text: str) -> None:
    assert read_endpoint(text) is None


@given(
    st.text()
    | st.from_regex(r"(http|https|ws|wss)://[ -~]*", fullmatch=True)
    | st.text(st.sampled_from("aZ01x-._:/[]%@\\?#\n")).map("http://".__add__)
)
def test_any_text_is_read_without_a_fault(text: str) -> None:
    endpoint = read_endpoint(text)
    assert endpoint is None or (
        endpoint.scheme in {"http", "https", "ws", "wss"}
        and endpoint.raw_user is None
        and (is_address(hostname_of(endpoint)) or "." not in hostname_of(endpoint)[-1:])
    )


def test_an_address_has_one_spelling() -> None:
    assert all(map(is_address, ["127.0.0.1", "::1", "2001:db8::1"]))
    assert not any(map(is_address, ["", "127.1", "localhost", "fe80::1%eth0", "0x7f.0.0.1"]))
