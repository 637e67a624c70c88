"""The receipt of an erasure holds when rows that it is made of have left for the archive."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventstore.log.erasure_receipt import (
    ReceiptRefused,
    RowsHaveLeft,
    Run,
    check_receipt,
    erasure_of,
)
from eventstore.log.streams import identity_stream
from eventstore.parquet.files import open_place
from eventstore.stores.open_log import open_log
from tests.contract.test_erasure_contract import GONE, erase, settle
from tests.contract.test_name_erasure_contract import send
from tests.contract.test_retention_contract import Mediator
from tests.export.leaving import leave
from tests.export.samples import SIGNED_BY
from tests.export.test_names_in_export import STAYS
from tests.histories import MEDIATOR


def test_a_receipt_holds_though_rows_have_left_and_is_not_made_of_half_of_them(
    tmp_path: Path,
) -> None:
    key, stream = SIGNED_BY, identity_stream(GONE)
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        log.setting("mediator_did", MEDIATOR)
        mediator = Mediator(log)
        for did in (GONE, STAYS):
            settle(mediator, did)
        for number in range(10):
            send(mediator, GONE, STAYS, b"%d" % number)
        erase(mediator, GONE)
        receipt = erasure_of(log, stream, key)
        assert leave(log, open_place(str(tmp_path / "archive"))).left > 0
        left = check_receipt(log, receipt, key)
        assert left == receipt.contents["message-queued"]
        with pytest.raises(RowsHaveLeft):
            erasure_of(log, stream, key)
        settle(mediator, "did:x:another")
        end = log.position()
        changes: tuple[dict[str, Any], ...] = (
            {"positions": [*receipt.positions, Run(end, end)]},
            {"ended": end},
            {"begun": receipt.begun - 1},
            {"reason": "owner"},
            {"begun_at_ms": receipt.begun_at_ms - 1},
            {"positions": receipt.positions[1:]},
            {"contents": {**receipt.contents, "message-queued": left + 1}},
            {"stream": identity_stream("did:x:unknown").hex},
            {"mediator_did": "did:x:another"},
            {"stream": identity_stream("did:x:another").hex, "begun": end, "ended": end},
        )
        for changed in changes:
            with pytest.raises(ReceiptRefused, match="differs from the log"):
                check_receipt(log, msgspec.structs.replace(receipt, **changed), key)
