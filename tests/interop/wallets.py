"""Wallets: what their owners have ACA-Py agents do, for each handshake."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import Any, Final

from tests.interop.acapy import AcaPyAgent
from tests.interop.webhooks import Webhooks

STEP_S_MAX: Final = 30.0
_POLL_S: Final = 0.1
_AT_ONCE: Final = 10


class Handshake(Enum):
    """How two agents connect; the values are the names of the protocols."""

    CONNECTIONS = "connections/1.0"
    DID_EXCHANGE = "didexchange/1.1"


class StepFailed(AssertionError):
    """A step of a scenario did not come to its end."""


def require(condition: bool, otherwise: str) -> None:
    """Demand something.

    Raises:
        StepFailed: it is not so.
    """
    if not condition:
        raise StepFailed(otherwise)


class Wallet:
    """An agent that does as its owner says, always by the same handshake."""

    def __init__(self, agent: AcaPyAgent, webhooks: Webhooks, handshake: Handshake) -> None:
        self.agent = agent
        self._webhooks = webhooks
        self._handshake = handshake

    async def enrol(self, invitation: dict[str, Any]) -> None:
        """Connect to a mediator, ask for mediation, and use it from now on.

        Raises:
            StepFailed: the connection was not made, or mediation not granted.
        """
        connection = await self.accept(invitation)
        requested = await self.agent.post(f"/mediation/request/{connection}")
        path = f"/mediation/requests/{requested['mediation_id']}"

        async def granted() -> bool:
            return bool((await self.agent.get(path))["state"] == "granted")

        await self._until(granted, "mediation is granted")
        await self.agent.put(f"/mediation/{requested['mediation_id']}/default-mediator")

    async def invite(self) -> tuple[str, dict[str, Any]]:
        """The id of a connection to come and its invitation, once the mediator knows its key.

        Raises:
            StepFailed: the mediator has not confirmed the key.
        """
        keys = len(await self._keylist())
        if self._handshake is Handshake.CONNECTIONS:
            made = await self.agent.post("/connections/create-invitation")
            connection = made["connection_id"]
        else:
            wanted = {"handshake_protocols": [f"https://didcomm.org/{self._handshake.value}"]}
            made = await self.agent.post("/out-of-band/create-invitation", wanted)
            query = f"/connections?invitation_msg_id={made['invi_msg_id']}"
            connection = (await self.agent.get(query))["results"][0]["connection_id"]
        invitation: dict[str, Any] = made["invitation"]
        if _routing_keys(invitation):

            async def confirmed() -> bool:
                return len(await self._keylist()) > keys

            await self._until(confirmed, "the mediator confirms the key of the invitation")
        return connection, invitation

    async def accept(self, invitation: dict[str, Any]) -> str:
        """Accept an invitation: the id of the connection, once it is made.

        Raises:
            StepFailed: it was not made.
        """
        family = "connections" if self._handshake is Handshake.CONNECTIONS else "out-of-band"
        path = f"/{family}/receive-invitation"
        taken = await self.agent.post(path, invitation, auto_accept="true")
        await self.connected(taken["connection_id"])
        return str(taken["connection_id"])

    async def connected(self, connection: str) -> None:
        """Wait until this connection is made.

        Raises:
            StepFailed: it was not made.
        """

        async def made() -> bool:
            record = await self.agent.get(f"/connections/{connection}")
            return bool(record["rfc23_state"] == "completed")

        await self._until(made, "the connection is made")

    async def send(self, connection: str, texts: Iterable[str]) -> None:
        """Send basic messages, and return when the other side's proxy has answered all of them.

        Raises:
            StepFailed: some were not taken in time.
        """
        waiting = list(texts)
        await self._until(self._quiet, "nothing is on its way")
        wanted = await self.agent.posts_answered() + len(waiting)
        for start in range(0, len(waiting), _AT_ONCE):
            path = f"/connections/{connection}/send-message"
            some = waiting[start : start + _AT_ONCE]
            await asyncio.gather(*(self.agent.post(path, {"content": text}) for text in some))

        async def taken() -> bool:
            return await self.agent.posts_answered() >= wanted and await self._quiet()

        await self._until(taken, f"{len(waiting)} messages are taken")

    async def receives(self, texts: Iterable[str], seconds_max: float = STEP_S_MAX) -> None:
        """Wait until each of these texts has come.

        Raises:
            StepFailed: one did not come in time.
        """
        wanted = set(texts)
        if not await self._webhooks.wait_for(self.agent.name, wanted.issubset, seconds_max):
            missing = wanted.difference(self.received())
            raise StepFailed(f"{self.agent.name} misses {len(missing)} of {len(wanted)} messages")

    def received(self) -> list[str]:
        """Every text that came, as often as it came."""
        return self._webhooks.texts(self.agent.name)

    async def _quiet(self) -> bool:
        return not await self.agent.posts_under_way()

    async def _keylist(self) -> list[dict[str, Any]]:
        answer = await self.agent.get("/mediation/keylists?role=client")
        results: list[dict[str, Any]] = answer["results"]
        return results

    async def _until(self, reached: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(STEP_S_MAX):
                while True:
                    if await reached():
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise StepFailed(f"{self.agent.name}: not reached: {what}") from None


def service_of(invitation: dict[str, Any]) -> dict[str, Any]:
    """The member of an invitation with its endpoint: of connections/1.0 it is the whole."""
    services: list[dict[str, Any]] = invitation.get("services", [invitation])
    return services[0]


def _routing_keys(invitation: dict[str, Any]) -> list[str]:
    found: list[str] = service_of(invitation).get("routingKeys") or []
    return found
