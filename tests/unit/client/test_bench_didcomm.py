"""The parts of the DIDComm benchmark that its figures rest on."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from http_edge.bench.acapy_peer import AcaPy, come_to_rest
from http_edge.bench.closed_loop import Run, fired
from http_edge.bench.didcomm import plan
from http_edge.bench.envelopes import PLAINTEXT_BYTES, Letter, forwards, letters, seal_of
from http_edge.bench.mediator import Mailbox, mediator_of
from http_edge.bench.paced import PacedLoad
from http_edge.bench.processes import ProcessTree
from http_edge.bench.server import NotReady, OwnServer
from http_edge.cli.bench import bench
from http_edge.cli.output import Exit
from http_edge.didcomm.keys import KeyPair, base58
from http_edge.wallet import Connection, Mediation, Recipient
from http_edge.wallet.connection import open_for

MS = 1_000_000


def mailbox() -> Mailbox:
    connection = Connection(KeyPair.new(), "", "", KeyPair.new().public, "", "")
    return Mailbox(connection, Recipient(KeyPair.new(), Mediation("", ())))


def opened_by(key: KeyPair, body: bytes) -> dict[str, object]:
    opened = open_for(key, body)
    assert opened is not None
    return opened.message


def test_letters_are_different_messages_of_1_kib_for_recipients_in_turn() -> None:
    people = [mailbox(), mailbox()]
    written = letters(people, 5)
    for number, letter in enumerate(written):
        recipient = people[number % 2].recipient
        assert letter.to == recipient.key.public
        message = recipient.unpack(letter.envelope).message
        assert message["@id"] == f"letter-{number}"
        assert len(orjson.dumps(message)) == PLAINTEXT_BYTES
    assert len({seal_of(letter.envelope) for letter in written}) == 5


def test_a_forward_names_the_recipient_and_holds_its_letter() -> None:
    mediator, (letter,) = KeyPair.new(), letters([mailbox()], 1)
    (body,) = forwards([letter], mediator.public)
    message = opened_by(mediator, body)
    assert str(message["@type"]).endswith("routing/1.0/forward")
    assert (message["to"], orjson.dumps(message["msg"])) == (base58(letter.to), letter.envelope)


def test_a_paced_load_counts_what_did_not_arrive() -> None:
    load = PacedLoad(3, 1_000, lambda _: None)
    load.arrived(0, 2 * MS)
    load.refused = 1
    assert (list(load.latencies), load.missing) == ([2 * MS], 1)
    load.arrived(2, 3 * MS)
    assert load.missing == 0


async def test_a_paced_load_waits_for_the_last() -> None:
    load = PacedLoad(1, 1_000, lambda _: None)
    load.arrived(0, MS)
    await load.wait_for_the_last()


def test_the_edge_alone_takes_forwards_in_turns_and_refuses_others(tmp_path: Path) -> None:
    with OwnServer(tmp_path, echo=True) as server:
        mediator = mediator_of(server)
        pool = forwards(letters([mailbox(), mailbox()], 8), mediator.invitation.key)
        line = fired("alone", mediator, pool, Run(4, 300, 30.0))
        assert (line.count, line.refused) == (300, {})
        foreign = forwards([Letter(*letters([mailbox()], 1)[0])], KeyPair.new().public)
        broken = [body.replace(b'"tag":"', b'"tag":"A', 1) for body in pool[:1]]
        refused = fired("alone", mediator, [*foreign, *broken], Run(1, 4, 30.0))
    # An envelope for another key is taken to be one of those that wait here.
    assert (refused.count, refused.refused) == (2, {'{"error":"undecryptable"}': 2})


def test_a_server_at_rest_is_not_waited_for() -> None:
    assert come_to_rest(ProcessTree(os.getpid())) < 10


def test_a_peer_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="no-such-program"), AcaPy(Path("no-such-program"), tmp_path):
        pass


def test_memory_of_its_own_is_a_part_of_all_memory() -> None:
    tree = ProcessTree(os.getpid())
    assert 1024 * 1024 < tree.own_memory_bytes() < tree.memory_bytes()


def test_a_quick_plan_is_a_twentieth() -> None:
    quick = plan(quick=True, scale=False, sockets=None)
    whole = plan(quick=False, scale=False, sockets=None)
    assert [run.connections for run in whole.runs] == [1, 16, 64]
    assert [run.count * 20 for run in quick.runs] == [run.count for run in whole.runs]
    assert (whole.sockets, quick.sockets) == (2_000, 100)
    assert plan(quick=False, scale=True, sockets=None).sockets == 10_000
    assert plan(quick=True, scale=True, sockets=7).sockets == 7


@pytest.mark.parametrize("url", ["http://10.0.0.1:80", "http://mediator.test:80", ""])
def test_only_this_machine_is_measured(url: str) -> None:
    assert CliRunner().invoke(bench, ["didcomm", "--url", url]).exit_code == Exit.USAGE


def test_a_port_without_a_mediator_is_no_mediator() -> None:
    invoked = CliRunner().invoke(
        bench, ["didcomm", "--url", "http://127.0.0.1:1"], standalone_mode=False
    )
    assert getattr(invoked.exception, "exit_code", None) == Exit.UNREACHABLE
