"""Names of who was erased leave the states of others, those of rows that have left the log too."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from actors.core.account_commands import ReleaseKey
from actors.core.commands import (
    AcknowledgeMessages,
    GrantMediation,
    RequestContract,
    UpdateKeylist,
)
from eventstore.parquet.files import open_place
from eventstore.stores.open_log import open_log
from tests.contract.test_erasure_contract import erase, settle
from tests.contract.test_name_erasure_contract import (
    message_ids,
    register,
    save_all,
    send,
    tables_naming,
)
from tests.contract.test_retention_contract import DAY_S, Mediator
from tests.export.leaving import assert_whole, leave
from tests.export.test_names_in_export import GONE, STAYS, take_out
from tests.unit.actors.didcomm import KEY, claimed
from tests.unit.actors.given import connection, run, submission, unclaimed


def pass_s(mediator: Mediator, seconds: float) -> None:
    """Let time pass, and what is over then leave."""
    mediator.pass_s(seconds)
    while mediator.expiry.step():
        pass


@pytest.mark.parametrize("reference", ["contract", "request", "key"])
def test_no_state_of_another_keeps_the_name_of_who_was_erased(
    tmp_path: Path, reference: str
) -> None:
    dsn, place = f"sqlite:{tmp_path / 'log.db'}", open_place(str(tmp_path / "archive"))
    with closing(open_log(dsn)) as log:
        mediator = Mediator(log)
        mediator.settle(STAYS)
        if reference == "contract":
            send(mediator, STAYS, GONE, b"message")
        elif reference == "request":
            request = RequestContract(GONE, "contract?", "key")
            run(mediator.host, submission(STAYS, request, sender=GONE))
        else:
            granted = GrantMediation(connection(label=STAYS), claimed(KEY))
            run(mediator.host, unclaimed(STAYS, granted))
            register(mediator, STAYS, GONE)
        save_all(log)
        run(mediator.host, submission(STAYS, AcknowledgeMessages([*message_ids(mediator, STAYS)])))
        assert leave(log, place).states > 0
        assert "archived_states" in tables_naming(dsn, GONE)
        assert "snapshots" not in tables_naming(dsn, GONE)
        settle(mediator, GONE)
        erase(mediator, GONE)
        if reference == "key":
            run(mediator.host, unclaimed(STAYS, UpdateKeylist([], [GONE])))
            run(mediator.host, unclaimed(f"key:{GONE}", ReleaseKey(STAYS, 1)))
        else:
            pass_s(mediator, 250)
        if reference == "contract":
            leave(log, place)  # what a request leaves with is no help to a contract
            pass_s(mediator, DAY_S + 400)
        for _ in range(2):
            leave(log, place)
            take_out(log, place)
        assert tables_naming(dsn, GONE) == []
        assert_whole(log, dsn)
