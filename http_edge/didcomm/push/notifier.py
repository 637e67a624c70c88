"""Who is notified of waiting messages, and when: one task for each agent with something to fetch.

A message for an agent with a device starts its task. The task waits a little, so that a wallet in
use fetches first, and then notifies the device if messages wait that no session is fetching. It
goes on watching until none waits, and notifies again, after a pause, only of newer messages and
while senders delay some. Any agent may name any device, so one that several agents name rests for
that pause whichever of them it was notified for, even if the service refused; but no longer than
the agent that it was notified for is watched, so that what is kept is bounded.

Notifications are best effort: nothing of a task is stored. After the end of an edge, the next
message for the agent starts a task again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final

import msgspec

from actors.core.commands import PushDevice, QueryPushDevice, QueryQueue, SetPushDevice
from actors.core.refusals import Refusal
from actors.core.replies import PushDeviceFound, QueueState
from http_edge.didcomm.identities import NO_ACCOUNT, Identities
from http_edge.didcomm.push.gateways import PushGateway
from http_edge.didcomm.push.service import APNS, Notification, PushOutcome
from http_edge.settings.settings import Push

_LOG = logging.getLogger(__name__)
RESULTS: Final = ("sent", "failed", "unregistered", "dropped")


class _Watch(msgspec.Struct):
    """What is known of an agent whose queue is watched.

    ``notified_ms`` is when the newest message was queued, in Unix ms, that the device knows of or
    the service refused to announce; ``resting`` is the device that was notified before the present
    pause, empty if none was.
    """

    notified_ms: int = 0
    resting: str = ""


class PushNotifier:
    """Notifies the devices of agents for which messages wait; one for each edge process."""

    def __init__(
        self,
        identities: Identities,
        gateway: PushGateway,
        settings: Push,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Notify through ``gateway``; ``sleep`` waits for some seconds."""
        self.channels = gateway.channels
        self._identities = identities
        self._gateway = gateway
        self._settings = settings
        self._sleep = sleep
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By the agent that is watched."""
        self._pausing: dict[str, None] = {}
        """The agents that pause after a turn, notified or not; since the longest time first."""
        self._news: set[str] = set()
        """The agents for which a message came since their queue was looked at."""
        self._resting: set[str] = set()
        """The devices that were notified within the last pause."""
        self._counts: Counter[str] = Counter()
        self._closing = False

    def wake(self, did: str) -> None:
        """Watch the queue of agent ``did``, which has a device and got a message. Never waits.

        If too many are watched, one that has had its turn is not any more: otherwise those who
        never fetch what they leave waiting could keep others from being notified. If none has had
        it, this one is not watched: if it replaced one before it, those who come faster
        than the service answers would let no turn come.
        """
        if self._closing:
            return
        if did not in self._tasks:
            if len(self._tasks) >= self._settings.agents_max and not self._make_room():
                return
            self._tasks[did] = asyncio.create_task(self._run(did), context=Context())
        self._news.add(did)

    def figures(self) -> dict[str, int]:
        """Return counts since the start by result, and the number of agents being watched.

        ``dropped``: agents that were not watched, or not any longer, since there were too many.
        """
        counts = {result: self._counts[result] for result in RESULTS}
        return {**counts, "agents": len(self._tasks)}

    async def close(self) -> None:
        """End all tasks and close the gateway; what is not notified by now will not be."""
        self._closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._gateway.close()

    def _make_room(self) -> bool:
        self._counts["dropped"] += 1
        longest = next(iter(self._pausing), None)
        if longest is None:
            return False
        del self._pausing[longest]
        self._tasks.pop(longest).cancel()
        self._news.discard(longest)
        return True

    async def _run(self, did: str) -> None:
        watch, pause_s = _Watch(), self._settings.delay_s
        try:
            while True:
                await self._sleep(pause_s)
                self._pausing.pop(did, None)
                self._resting.discard(watch.resting)
                watch.resting = ""
                self._news.discard(did)
                if not await self._step(did, watch) and did not in self._news:
                    return
                pause_s = self._settings.interval_s
                self._pausing[did] = None
        except Exception:  # noqa: BLE001 - one agent's failure is not another's
            _LOG.exception("a push notification failed")
        finally:
            self._resting.discard(watch.resting)
            # In one step with the end of the task, so that no news is given to an ended task.
            if self._tasks.get(did) is asyncio.current_task():
                del self._tasks[did]
                self._news.discard(did)

    async def _step(self, did: str, watch: _Watch) -> bool:
        """Notify if there is reason to; return whether there is still something to watch."""
        ask = self._identities.ask_unprompted
        found, state = await asyncio.gather(
            ask(did, QueryPushDevice(), PushDeviceFound), ask(did, QueryQueue(), QueueState)
        )
        if isinstance(found, Refusal) or isinstance(state, Refusal):
            return not any(each in (found, state) for each in NO_ACCOUNT)
        device = found.device
        if device is None or device.channel not in self.channels or not state.messages:
            return False
        if state.live or not state.available:
            return True  # a session is fetching the messages
        # Not by the newest that waits alone: the clock may have been set back since, which the last
        # added one shows, or what came later have been fetched.
        if watch.notified_ms in (state.newest_ms, state.last_added_ms):
            return False
        if state.newest_ms < watch.notified_ms < state.last_added_ms:
            return False
        name = _name(device)
        if name in self._resting:
            return True
        self._resting.add(name)
        watch.resting = name
        return await self._notify(did, device, state, watch)

    async def _notify(self, did: str, device: PushDevice, state: QueueState, watch: _Watch) -> bool:
        match await self._gateway.send(Notification(device, state.messages)):
            case PushOutcome.SENT:
                self._counts["sent"] += 1
                # What senders delay cannot be fetched yet, and is older by then than what can.
                if not state.held_back:
                    watch.notified_ms = state.newest_ms
                return True
            case PushOutcome.UNAVAILABLE:
                self._counts["failed"] += 1
                return True
            case PushOutcome.REFUSED:
                self._counts["failed"] += 1
                watch.notified_ms = state.newest_ms  # not again; what is left is to let it rest
                return True
            case PushOutcome.UNREGISTERED:
                self._counts["unregistered"] += 1
                forget = SetPushDevice(None, instead_of=device.token)
                await self._identities.ask_unprompted(did, forget, PushDeviceFound)
                return False


def _name(device: PushDevice) -> str:
    """Return a name of the device that is the same however an agent spells it."""
    is_hexadecimal = device.channel == APNS
    return f"{device.channel} {device.token.lower() if is_hexadecimal else device.token}"
