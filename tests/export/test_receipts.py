"""The receipt of an erasure holds when rows that it is made of have left for the archive."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventstore.log.codec import encode
from eventstore.log.erasure_receipt import (
    ErasureReceipt,
    ReceiptRefused,
    RowsHaveLeft,
    Run,
    check_receipt,
    erasure_of,
    sign_receipt,
    verified_receipt,
)
from eventstore.log.events import IdentityErased, IdentityErasureBegun
from eventstore.log.streams import identity_stream
from eventstore.parquet.files import open_place
from eventstore.stores.open_log import open_log
from tests.contract.test_erasure_contract import GONE, erase, settle
from tests.contract.test_name_erasure_contract import send
from tests.contract.test_retention_contract import Mediator
from tests.export.leaving import leave
from tests.export.samples import SIGNED_BY, SIGNER
from tests.export.test_names_in_export import STAYS
from tests.histories import MEDIATOR
from tests.log.raw_sql import run_sql


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
        saved = receipt.contents["event-saved"]  # which alone stay
        assert left == sum(receipt.contents.values()) - saved
        with pytest.raises(RowsHaveLeft):
            erasure_of(log, stream, key)
        for did in (GONE, "did:x:another"):
            settle(mediator, did)
        queued = log.stream_rows(stream, topics={"message-queued.2"})
        again = queued[-1].position  # of who has come back since
        end = log.position()
        one, stays, *rest = receipt.positions
        fewer = {**receipt.contents, "event-saved": saved - 1}
        removal = receipt.begun + 2  # which has left, too
        changes: tuple[dict[str, Any], ...] = (
            {"positions": [one, Run(stays.first + 1, stays.last), *rest], "contents": fewer},
            {"positions": [*receipt.positions[:-1], Run(removal, removal)]},
            {"positions": [*receipt.positions[:-1], receipt.positions[-2]]},
            {"contents": {"message-queued": sum(receipt.contents.values())}},
            {"positions": [*receipt.positions, Run(end, end)]},
            {"positions": [Run(one.first + 1, one.last), stays, *rest, Run(again, again)]},
            {"ended": end},
            {"begun": receipt.begun - 1},
            {"reason": "owner"},
            {"begun_at_ms": receipt.begun_at_ms - 1},
            {"ended_at_ms": receipt.ended_at_ms + 1},
            {"positions": receipt.positions[1:]},
            {"contents": {**receipt.contents, "message-queued": left + 1}},
            {"stream": identity_stream("did:x:unknown").hex},
            {"mediator_did": "did:x:another"},
            {"stream": identity_stream("did:x:another").hex, "begun": end, "ended": end},
        )
        for changed in changes:
            with pytest.raises(ReceiptRefused, match="differs from the log"):
                check_receipt(log, msgspec.structs.replace(receipt, **changed), key)


@pytest.mark.parametrize("is_step", [True, False])
def test_a_row_that_is_missing_behind_the_seam_has_not_left(
    tmp_path: Path, *, is_step: bool
) -> None:
    dsn = f"sqlite:{tmp_path / 'log.db'}"
    with closing(open_log(dsn)) as log:
        log.setting("mediator_did", MEDIATOR)
        mediator = Mediator(log)
        settle(mediator, GONE)
        leave(log, open_place(str(tmp_path / "archive")))
        settle(mediator, STAYS)
        send(mediator, GONE, STAYS, b"behind the seam")
        erase(mediator, GONE)
        receipt = erasure_of(log, identity_stream(GONE), SIGNED_BY)
        missing = receipt.begun + 2 if is_step else receipt.positions[-1].last
        run_sql(dsn, f"DELETE FROM stored_events WHERE rowid = {missing}")
        with pytest.raises(RowsHaveLeft):
            erasure_of(log, identity_stream(GONE), SIGNED_BY)
        refused = pytest.raises(ReceiptRefused, match="differs from the log")
        with nullcontext() if is_step else refused:
            assert check_receipt(log, receipt, SIGNED_BY) == 0


def test_a_receipt_of_an_erasure_that_erased_nothing_is_refused(tmp_path: Path) -> None:
    stream = identity_stream(GONE)
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        log.setting("mediator_did", MEDIATOR)
        settle(Mediator(log), GONE)
        (last,) = log.read_stream(stream, limit=1, newest_first=True)
        version = last.originator_version
        events = [
            IdentityErasureBegun(at_ms=1, command=bytes(16), reason="operator"),
            IdentityErased(at_ms=2, command=bytes(16)),
        ]
        rows = [encode(stream, version + n, event) for n, event in enumerate(events, 1)]
        log.append(rows, events)
        receipt = erasure_of(log, stream, SIGNED_BY)
        assert receipt.contents == {}
        with pytest.raises(ReceiptRefused, match="still exists"):
            check_receipt(log, receipt, SIGNED_BY)


@pytest.mark.parametrize("other", [{"signed_by": "another"}, {"format": 2}])
def test_a_receipt_of_another_key_or_format_is_refused_though_its_signature_holds(
    other: dict[str, Any],
) -> None:
    begun = {"reason": "owner", "begun": 1, "begun_at_ms": 1}
    ended = {"ended": 2, "ended_at_ms": 2, "contents": {}, "positions": []}
    said = {"mediator_did": MEDIATOR, "stream": "", **begun, **ended}
    receipt = msgspec.convert(said | {"signed_by": SIGNED_BY.text}, ErasureReceipt)
    signed = sign_receipt(receipt, SIGNER.sign)
    assert verified_receipt(signed, SIGNED_BY) == receipt
    text, signature = signed.split()
    signed_bytes = b"poste erasure receipt\n" + text
    assert SIGNED_BY.verify(signed_bytes, bytes.fromhex(signature.decode()))
    changed = sign_receipt(msgspec.structs.replace(receipt, **other), SIGNER.sign)
    with pytest.raises(ReceiptRefused, match=r"was not signed by|its format is 2"):
        verified_receipt(changed, SIGNED_BY)
