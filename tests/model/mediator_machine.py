"""The machine with all that only a host on a log can be asked: reads, ownership, upkeep."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import rule
from typing_extensions import override

from actors.core import commands as c
from actors.core.submissions import Read
from eventstore.log.event_log import (
    PublicEventsFilter,
    PublicEventsPage,
    SavedEventsFilter,
    SavedEventsPage,
    WaitingQueue,
)
from tests.log.faulty_log import Plan
from tests.model.agent_machine import AgentMachine
from tests.model.machine import (
    IDENTITIES,
    channels,
    faults,
    identities,
    moments_s,
    one_or_all,
    pages,
    tags,
)
from tests.model.reference import public_events, saved_events
from tests.model.systems import EDGE, NOT_OWNER, HostSystem

bounds_s = st.none() | moments_s


class MediatorMachine(AgentMachine):
    """What a host on a log can be asked besides: read models, ownership, its own upkeep."""

    make_system: Callable[[], HostSystem]
    system: HostSystem

    @rule(
        owner=identities,
        page=pages,
        where=st.builds(
            SavedEventsFilter,
            after_timestamp_s=bounds_s,
            before_timestamp_s=bounds_s,
            participant_did=one_or_all,
            encrypted_tags=tags,
            unprocessed_only=st.booleans(),
        ),
    )
    def query_saved_events(self, owner: str, page: c.Page, where: SavedEventsFilter) -> None:
        self.ask(owner, owner, c.QuerySavedEvents(page, where))
        self.commit()
        self.read_saved(owner, page, where)

    def read_saved(self, owner: str, page: c.Page, where: SavedEventsFilter) -> None:
        matching = saved_events(self.reference.boxes[owner], where)
        shown = matching[page.offset : page.offset + page.size]
        found = self.system.read(Read(owner, page, where))
        assert found == SavedEventsPage(shown, len(matching))

    @rule(
        owner=identities,
        page=pages,
        where=st.builds(
            PublicEventsFilter,
            channel_id=st.none() | channels,
            tags=tags,
            after_timestamp_s=bounds_s,
            before_timestamp_s=bounds_s,
        ),
    )
    def read_public_events(self, owner: str, page: c.Page, where: PublicEventsFilter) -> None:
        self.commit()
        self.read_public(owner, page, where)

    def read_public(self, owner: str, page: c.Page, where: PublicEventsFilter) -> None:
        matching = public_events(self.reference.boxes[owner], where)
        shown = matching[page.offset : page.offset + page.size]
        found = self.system.read(Read(owner, page, where))
        assert found == PublicEventsPage(shown, len(matching))

    @override
    def check(self) -> None:
        super().check()
        for person in IDENTITIES:
            self.read_saved(person, c.Page(0, 100), SavedEventsFilter())
            self.read_public(person, c.Page(0, 100), PublicEventsFilter())
        waiting = [m for box in self.reference.boxes.values() for m in box.messages]
        figures = self.system.figures()
        assert figures.queue_messages == len(waiting)
        assert figures.queue_bytes == sum(len(message.payload) for message in waiting)
        self.check_waiting_queues()

    def check_waiting_queues(self) -> None:
        boxes = self.reference.boxes
        assert self.system.waiting_queues() == {
            person: WaitingQueue(
                person,
                len(box.messages),
                box.queue_bytes,
                box.messages[0].at_ms,
                bool(box.connection and box.connection.endpoint),
            )
            for person, box in boxes.items()
            if box.messages
        }

    @rule()
    def run_housekeeping(self) -> None:
        self.commit()
        self.system.run_housekeeping()
        self.replay()

    @rule(fault=faults)
    def restart_on_a_failing_log(self, fault: Plan) -> None:
        self.commit()
        self.system.restart_on_a_failing_log(fault)
        self.reference.restart()

    @rule(who=identities)
    def take_over(self, who: str) -> None:
        """The former owner answers no command and changes nothing, however often it is asked."""
        self.commit()
        former = self.system.take_over()
        self.reference.restart()
        self.room = 2
        self.ask(who, who, c.QueryMessages(c.Page(0, 10)))
        batch = [*self.waiting, *self.waiting]
        for _ in range(2):
            ids = self.fresh_ids(batch)
            answered = self.system.ask_former(former, batch, ids)
            assert answered == [NOT_OWNER] * len(batch)
        self.commit()
        self.send(batch[0])

    @rule(who=identities, is_live=st.booleans())
    def hand_over(self, who: str, is_live: bool) -> None:
        """Sessions, leases, stored nonces go along; what the former owner refuses is not done."""
        if is_live:
            self.put(who, c.StartLive(EDGE, "phone"))
            self.commit()
            self.put(who, c.DeliverMessages("phone", "live", 1, 99, 340_000, live=True))
            self.commit()
        self.put(who, c.QueueEnvelopes("", [b"to lease"]))
        self.put(who, c.DeliverMessages("phone", "pickup/2.0", 10, 1_000, 340_000))
        self.commit()
        former = self.system.hand_over()
        self.reference.hand_over()
        self.room = 2
        self.ask(who, who, c.QueryMessages(c.Page(0, 10)))
        (request,) = self.waiting
        assert self.system.ask_former(former, [request], ["none"]) == [NOT_OWNER]
        self.commit()
        self.put(who, c.DeliverMessages("phone", "pickup/2.0", 1, 1_000, 500, live=True))
        self.replay()

    def teardown(self) -> None:
        """What is wrong in a log stays wrong: one look at the end sees every step."""
        try:
            assert self.system.findings() == []
        finally:
            self.system.close()
