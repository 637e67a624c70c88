"""Contracts that expire together, up to 10,000 of one identity, leave its state at little cost."""

from __future__ import annotations

from typing import Any

from actors.core.evolve import evolve, evolve_all
from actors.core.identity import Identity
from eventstore.log.events import ContractExpired, ContractStored, MessagesDelivered

_ME = "did:x:me"


class _Counted(dict[str, Any]):
    """Counts how often all its values were asked for."""

    passes = 0

    def values(self) -> Any:
        self.passes += 1
        return super().values()


def test_contracts_that_expire_together_cost_one_pass_over_those_that_stay() -> None:
    """Each is the first to expire, and the only one with its partner."""
    state = Identity()
    for number in range(100):
        evolve(state, _stored(number))
    state.contracts = counted = _Counted(state.contracts)
    delivered = MessagesDelivered(at_ms=1, command=b"", message_ids=[], channel="")
    evolve_all(state, [*map(_expired, range(64)), delivered])
    assert counted.passes == 1
    assert state.version == 165
    assert state.contracts_until_s == 65
    assert list(state.contracts) == [str(number) for number in range(64, 100)]
    left = {_partner(number): number + 1 for number in range(64, 100)}
    assert state.correspondents == {_ME: 100, **left}


def _stored(number: int) -> ContractStored:
    return ContractStored(
        at_ms=1,
        command=b"",
        contract_id=str(number),
        requestor_did=_partner(number),
        recipient_did=_ME,
        expires_at_s=number + 1,
        digest=b"%d" % number,
        contract=b"c",
    )


def _expired(number: int) -> ContractExpired:
    digest = b"%d" % number
    return ContractExpired(
        at_ms=1, command=b"", contract_id=str(number), digest=digest, reason="expired"
    )


def _partner(number: int) -> str:
    return f"did:x:{number}"
