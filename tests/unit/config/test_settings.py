"""The settings themselves: values that travel, agree with each other, and derive the rest."""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from http_edge.didcomm.delivery.hand_out import delivery_to
from http_edge.settings.settings import (
    DidComm,
    DidWeb,
    Limits,
    Protocol,
    Section,
    Settings,
    did_web,
    split_listen,
)
from http_edge.settings.value_types import MIB

OTHER = Settings(
    data_dir=Path("/srv/poste"),
    listen="[::1]:9000",
    dedicated_dids=("did:key:z6Mk",),
    hosts=3,
    limits=Limits(queue_messages_max=7),
)


@pytest.mark.parametrize("settings", [Settings(), OTHER])
def test_settings_cross_process_boundaries_unchanged(settings: Settings) -> None:
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - our own bytes
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


def test_the_defaults_keep_their_own_bounds() -> None:
    assert Settings.model_validate_json(Settings().model_dump_json(), strict=True) == Settings()


def test_the_times_of_the_protocol_are_those_of_its_specification() -> None:
    protocol = Settings().protocol
    assert protocol.timestamp_window_ms == 5 * 60 * 1_000  # DCTRL-0004 5.1, 10.2
    assert protocol.socket_auth_s == 10  # 10.1, 10.2
    assert protocol.ping_interval_s == 30  # 10.4


def test_settings_cannot_be_changed_after_the_start() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(Settings().limits, "queue_messages_max", 1)  # noqa: B010 - types forbid it too


@pytest.mark.parametrize(
    ("listen", "parts"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("[::1]:0", ("::1", 0)),
        ("mediator.example:65535", ("mediator.example", 65_535)),
    ],
)
def test_a_listen_address_splits_into_host_and_port(listen: str, parts: tuple[str, int]) -> None:
    assert split_listen(listen) == parts


@pytest.mark.parametrize(
    "listen",
    [
        "",
        "8080",
        ":8080",
        "host",
        "host:",
        "host:x",
        "host:65536",
        "::1:80",
        "[host]:80",
        "h:\u0661",
        "\xe4..b:80",
        f"{64 * 'h'}:80",
    ],
)
def test_a_listen_address_of_another_form_is_refused(listen: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        split_listen(listen)


@pytest.mark.parametrize(
    ("url", "did"),
    [
        ("https://mediator.example", "did:web:mediator.example"),
        ("http://localhost:8080", "did:web:localhost%3A8080"),
        ("https://mediator.example/a/b", "did:web:mediator.example:a:b"),
        ("http://[::1]:8080", "did:web:%5B%3A%3A1%5D%3A8080"),
    ],
)
def test_the_did_follows_from_the_public_url(url: str, did: str) -> None:
    assert did_web(url) == did
    assert Settings(public_url=url).mediator_did == did
    assert Settings(public_url=url + "/").mediator_did == did


def test_a_did_that_is_set_wins_over_the_url() -> None:
    settings = Settings(public_url="https://new.example", did="did:web:old.example")
    assert settings.mediator_did == "did:web:old.example"


@pytest.mark.parametrize("wildcard", ["0.0.0.0:80", "[::]:80"])
def test_a_wildcard_address_is_announced_as_localhost(wildcard: str) -> None:
    assert Settings(listen=wildcard).url == "http://localhost:80"


def test_a_bound_port_takes_the_place_of_port_0() -> None:
    assert Settings(listen="[::1]:0").bound_to(4711, 0).url == "http://[::1]:4711"


def test_log_and_keys_stand_in_the_data_directory() -> None:
    assert OTHER.log_dsn == "sqlite:///srv/poste/log.db"
    assert OTHER.keys_path == Path("/srv/poste/mediator-keys.json")
    assert Settings(data_dir=Path("a b?")).log_dsn == "sqlite:a%20b%3F/log.db"
    assert Settings(log="postgresql://h/d").log_dsn == "postgresql://h/d"


def test_a_password_in_the_log_address_is_not_in_the_repr() -> None:
    assert "hunter2" not in repr(Settings(log="postgresql://u:hunter2@h/d"))


@given(st.integers(0, 65_535), st.sampled_from(["127.0.0.1", "[::1]", "example.org"]))
def test_every_port_of_every_kind_of_host_is_accepted(port: int, host: str) -> None:
    settings = Settings(listen=f"{host}:{port}")
    assert split_listen(settings.listen) == (host.strip("[]"), port)


@pytest.mark.parametrize(
    ("log", "fits"),
    [
        ("sqlite:///srv/log.db", True),
        ("sqlite:////srv/log.db", True),
        ("sqlite:/srv/log.db", True),
        ("sqlite://srv/log.db", False),
        ("sqlite:///srv/log.db?mode=ro", False),
        ("sqlite:///srv/log.db#old", False),
        ("sqlite:srv/log.db", False),
        ("postgresql://a/log postgresql://b/log", True),
        ("postgresql://a/log postgresql://a/log", False),
    ],
)
def test_no_part_of_the_address_of_a_log_is_ignored(log: str, *, fits: bool) -> None:
    if fits:
        assert " ".join(Settings(log=log).log_dsns) == log
    else:
        with pytest.raises(ValidationError):
            Settings(log=log)


@pytest.mark.parametrize("port", [1, 65_535, 65_536, 99_999])
def test_a_public_url_has_a_port_that_exists(port: int) -> None:
    url = f"https://mediator.example:{port}"
    if port <= 65_535:
        assert Settings(public_url=url).url == url
    else:
        with pytest.raises(ValidationError):
            Settings(public_url=url)


@pytest.mark.parametrize(
    ("host", "fits"),
    [
        ("a.example", True),
        ("A.example:8443", True),
        ("localhost", True),
        ("https://a.example", False),
        ("a.example/", False),
        ("*.example", False),
        ("a.example:", False),
        ("", False),
    ],
)
def test_a_host_to_fetch_from_is_a_host(host: str, *, fits: bool) -> None:
    if fits:
        assert DidWeb(allowed_hosts=(host,)).allowed_hosts == (host,)
    else:
        with pytest.raises(ValidationError):
            DidWeb(allowed_hosts=(host,))


@pytest.mark.parametrize(
    ("section", "listed"), [(Protocol, "allowed_dids"), (DidComm, "allowed_keys")]
)
@pytest.mark.parametrize(
    ("registration", "fits"),
    [("allow_list", True), ("closed", True), ("open", False), ("invitation", False)],
)
def test_a_list_of_who_may_register_is_refused_where_others_may(
    section: type[Section], listed: str, registration: str, *, fits: bool
) -> None:
    values = {"registration": registration, listed: ["did:web:a.example"]}
    if fits:
        section.model_validate_json(json.dumps(values))
    else:
        with pytest.raises(
            ValidationError, match=f"{listed}: expected none, or .*registration allow_list"
        ):
            section.model_validate_json(json.dumps(values))


@pytest.mark.parametrize(("lease_s", "fits"), [(0.0004, False), (0.9, False), (1, True)])
def test_messages_that_are_delivered_are_leased_and_not_only_shown(
    lease_s: float, *, fits: bool
) -> None:
    if fits:
        settings = DidComm(lease_s=lease_s)
        assert delivery_to("phone", "live", 1, settings).lease_ms == lease_s * 1000
    else:
        with pytest.raises(ValidationError):
            DidComm(lease_s=lease_s)


def test_the_largest_body_has_room_among_all_bodies_that_an_edge_holds() -> None:
    with pytest.raises(ValidationError, match="body_bytes_max at most bodies_bytes_max"):
        Limits(body_bytes_max=2 * MIB, bodies_bytes_max=MIB)
    assert Limits(body_bytes_max=MIB, bodies_bytes_max=MIB).bodies_bytes_max == MIB


def test_the_default_page_of_public_events_is_one_that_may_be_read() -> None:
    assert Limits(public_page_size_max=10).page_size_default == 10
    with pytest.raises(ValidationError, match="page_size_default at most public_page_size_max"):
        Limits(public_page_size_max=9)
