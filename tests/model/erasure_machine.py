"""The machines with the erasure of identities: at any time, in any steps, and back at any time."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from actors.core import commands as c
from tests.histories import contract
from tests.log.faulty_log import Plan
from tests.model.agent_machine import AgentMachine, connection
from tests.model.erasure_reference import ErasableBox, ErasureReference
from tests.model.machine import IDENTITIES, MEDIATOR, NAMES, START_S, faults, friend_of
from tests.model.mediator_machine import MediatorMachine
from tests.model.systems import HostSystem

steps = st.builds(c.EraseIdentity, st.just("continued"), st.sampled_from([1, 2, 99]))
searches = st.builds(c.ExpireRecords, st.sampled_from([1, 2, 99]))
_ALL = c.EraseIdentity("continued", 99)


class ErasingAgents(AgentMachine):
    """Decentrl and DIDComm, and identities that are erased."""

    def __init__(self) -> None:
        super().__init__()
        self.reference = ErasureReference(has_lists=isinstance(self.system, HostSystem))

    def box(self, who: str) -> ErasableBox:
        """What the model says of an identity."""
        found = self.reference.boxes[who]
        assert isinstance(found, ErasableBox)
        return found

    @rule(
        who=st.sampled_from([*IDENTITIES, *IDENTITIES, *NAMES]),
        by=st.sampled_from(["operator", "operator", "foreign", "owner", "continued"]),
        fault=st.none() | faults,
        spoke=st.lists(st.sampled_from(NAMES), max_size=2),
        more=st.lists(steps | searches, max_size=5),
        is_whole=st.booleans(),
        comes_back=st.sampled_from([(), ("agent",), ("client",), ("agent", "client")]),
    )
    def be_erased(  # noqa: PLR0913 - each is one choice of a history
        self,
        *,
        who: str,
        by: str,
        fault: Plan | None,
        spoke: list[str],
        more: list[c.Command],
        is_whole: bool,
        comes_back: tuple[str, ...],
    ) -> None:
        """An erasure begins, and goes on by requests or by the search for due records.

        Before it ``spoke`` speak for the account, one after another, unless it has other speakers.
        """
        speaks = who
        for other in spoke:
            rotated = c.RotateAccount(speaks, other, START_S + 50_000_000, connection(""))
            self.put(who, c.Connect(connection("")), rotated)
            speaks = other
        self.commit()
        if fault is not None:
            self.room = 3  # the fault comes with the commit below
            self.ask(who, who, None)  # its nonce is stored, whatever there is to erase
        self.put(who, c.EraseIdentity(by, 2))
        self.commit(fault)
        while self.box(who).listed:
            self.put(who, _ALL)
            self.commit()
        self.put(who, *more)
        while is_whole and self.box(who).erasing:
            self.put(who, _ALL)
            self.commit()
        if "agent" in comes_back:
            self.put(who, c.GrantMediation(connection(""), []), c.QueryConnection(), c.SeeAgent())
        if "client" in comes_back and who in IDENTITIES:
            for other in (MEDIATOR, friend_of(who)):
                signed = contract(who, other, START_S + 100_000_000)
                is_first = other == MEDIATOR
                self.ask(who, who, c.Register(signed) if is_first else c.SaveContract(signed))
        self.put(who, c.QueryQueue(), *map(c.FindAccount, [[], []]))

    be_erased_soon = be_erased_late = be_erased
    """So that a history has several: what is left of one shows in the next."""


class ErasingMediator(ErasingAgents, MediatorMachine):
    """The same on a log."""
