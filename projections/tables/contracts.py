"""Contracts and waiting contract requests (DCTRL-0004 8.1 to 8.6)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from projections.tables.projection import (
    ERASED,
    PLACE,
    LiveRows,
    Projection,
    Step,
    without,
)

_CONTRACT: Final = {
    "contract_id": "id of the record",
    "requestor_did": "who requested the contract",
    "recipient_did": "who answered",
    "expires_at_s": "when it ends, Unix seconds",
    "digest": "SHA-256 of the signed contract",
    "size_bytes": "size of the signed contract",
}
_REQUEST: Final = {
    "request_id": "id of the request",
    "sender_did": "who asks",
    "size_bytes": "size of the encrypted request",
}


def _contracts(step: Step) -> DataFrame:
    new = step.of("contract-stored").select(*PLACE, *_CONTRACT)
    expired = step.of("contract-expired").select("stream", "version", "contract_id")
    since = without(step.since(new), step.of(ERASED), "stream")
    return without(since, expired, "stream", "contract_id")


def _requests(step: Step) -> DataFrame:
    new = step.of("contract-requested").select(*PLACE, *_REQUEST)
    gone = step.of("contract-requests-acknowledged", "contract-requests-expired").select(
        "stream", "version", F.explode("request_ids").alias("request_id")
    )
    return without(step.since(new), gone, "stream", "request_id")


CONTRACTS: Final = Projection(
    "contracts",
    "Signed contracts of each owner, expired ones included until they leave.",
    PLACE | _CONTRACT,
    ("contract-stored", "contract-expired", ERASED),
    _contracts,
    LiveRows(keys=("contract_id",), order=("version",)),
)
CONTRACT_REQUESTS: Final = Projection(
    "contract_requests",
    "Contract requests that wait for an answer.",
    PLACE | _REQUEST,
    ("contract-requested", "contract-requests-acknowledged", "contract-requests-expired"),
    _requests,
    LiveRows(keys=("request_id",), order=("version",)),
)
