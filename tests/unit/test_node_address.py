"""The address that a node gives itself is the one on the network of the log's server."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from http_edge.server.address import address_towards, reserved_address
from http_edge.server.exits import Exit, Stop
from http_edge.server.serve import _on_node
from http_edge.settings.settings import Settings


@pytest.mark.parametrize(
    "dsns",
    [
        ["postgresql://poste:secret@127.0.0.1:5432/poste"],
        ["postgresql://poste@127.0.0.1,db.invalid:5433/poste?target_session_attrs=read-write"],
        ["postgresql://poste@db.invalid/poste", "postgresql://poste@127.0.0.1/poste"],
    ],
)
def test_it_is_the_one_from_which_the_first_server_that_is_there_is_reached(
    dsns: list[str],
) -> None:
    assert address_towards(dsns) == "127.0.0.1"


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql:///poste?host=/run/postgresql",
        "postgresql://poste:secret@db.invalid/poste",
        "postgresql://poste:secret@db..invalid/poste",
        f"postgresql://poste:secret@{64 * 'd'}.invalid/poste",
    ],
)
def test_without_a_way_to_the_server_the_operator_is_asked_to_name_it(dsn: str) -> None:
    with pytest.raises(Stop) as stopped:
        address_towards([dsn])
    assert stopped.value.exit_code == Exit.UNREACHABLE
    assert "--set node_address=ADDRESS" in stopped.value.remedy
    assert "secret" not in stopped.value.message


def test_a_password_that_ends_the_name_of_its_user_too_early_is_not_taken_for_a_server() -> None:
    with pytest.raises(Stop, match="the URL cannot be read") as stopped:
        address_towards(["postgresql://poste:a@hunter2/b@127.0.0.1/poste"])
    assert "hunter2" not in stopped.value.message


@pytest.mark.parametrize(
    "address", ["192.0.2.1", "2001:db8::1"]
)  # of documentation (RFC 5737, 3849)
def test_an_address_of_another_machine_is_refused_in_either_family(address: str) -> None:
    settings = Settings(log="postgresql://poste@127.0.0.1/poste", node_address=address)
    with pytest.raises(Stop) as stopped:
        _on_node(settings)
    assert stopped.value.exit_code == Exit.USAGE
    assert address in stopped.value.message


def test_an_address_has_no_brackets() -> None:
    with pytest.raises(ValidationError):
        Settings(log="postgresql://poste@127.0.0.1/poste", node_address="[::1]")


def test_only_where_a_process_listens_at_an_address_is_one_to_be_stopped() -> None:
    with reserved_address("127.0.0.1:0", "--listen", patient=False) as port:
        taken = f"127.0.0.1:{port}"
        for address, is_taken in ((taken, True), ("192.0.2.1:0", False), ("db.invalid:0", False)):
            with (
                pytest.raises(Stop) as stopped,
                reserved_address(address, "--listen", patient=False),
            ):
                pass
            assert stopped.value.exit_code == Exit.USAGE
            assert ("Stop the process" in stopped.value.remedy) == is_taken, address
            assert "ame another address with --listen." in stopped.value.remedy
