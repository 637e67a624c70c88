"""Up to 10,000 contracts of one identity cost little, as they come and as they expire together."""

from __future__ import annotations

from typing import Any

from actors.core.commands import StoreContract
from actors.core.decide import decide
from actors.core.decision import Accepted
from actors.core.evolve import evolve, evolve_all
from actors.core.identity import Identity
from actors.core.limits import IdentityLimits
from eventstore.log.events import ContractExpired, ContractStored, MessagesDelivered
from tests.unit.actors.given import NOW_S, context, contract

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
    assert {did: each.until_s for did, each in state.correspondents.items()} == {_ME: 100, **left}


def test_a_contract_of_one_partner_takes_no_pass_over_those_of_all_others() -> None:
    state = Identity()
    for number in range(100):
        evolve(state, _stored(number))
    state.contracts = counted = _Counted(state.contracts)
    state.registered_until_s = NOW_S + 1
    command = StoreContract(contract(_partner(0), _ME))
    limits = IdentityLimits(contracts_max=101)
    decided = decide(state, command, context(target=_ME, limits=limits, fresh_id="new"))
    assert isinstance(decided, Accepted)
    assert counted.passes == 0


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
