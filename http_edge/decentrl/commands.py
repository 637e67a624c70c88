"""The command endpoint: answers a request body, in the order of DCTRL-0004 sections 5 to 7.

Envelope → timestamp → nonce → resolve → key → signature → payload → authorization → rules. The edge
runs every check that needs no state before it calls the host. The host claims the nonce first, and
only then refuses a command that the edge rejected, so a replay with a bad signature is still
DUPLICATE_NONCE. DIDs that need the network (a foreign did:web) are fetched only after the nonce is
claimed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Final, Protocol

import msgspec

from actors.core.agents import invitation_target
from actors.core.commands import (
    CheckRegistered,
    Command,
    EraseIdentity,
    QuerySavedEvents,
    Register,
    UseInvitation,
)
from actors.core.cost import costs, parts, source_key, turn_cost
from actors.core.decide import adds
from actors.core.erasure import CONTINUED, ELSEWHERE, ELSEWHERE_LATER
from actors.core.nonces import NonceClaim, Proof
from actors.core.refusals import Refusal
from actors.core.replies import (
    UNAVAILABLE,
    Done,
    Erased,
    MessagesBeside,
    MessagesPage,
    Refused,
    Registered,
    Reply,
)
from actors.core.submissions import Read, Submission, WaitingAt
from actors.host.clock import Clock
from actors.host.packed_page import FoundPage
from eventstore.log.seal import command_key
from http_edge.crypto.canonical_json import takes_long
from http_edge.decentrl import envelope
from http_edge.decentrl.answers import (
    Answer,
    Rejected,
    answer_of,
    answer_to,
    page_refused,
    refuse,
    reject,
)
from http_edge.decentrl.command_table import TYPES
from http_edge.decentrl.envelope import CommandEnvelope
from http_edge.decentrl.validator import INVITATION_USED, CommandValidator, ValidatedCommand
from http_edge.dids.document import Fetch
from http_edge.dispatch.gateway import Gateway
from http_edge.listener.address_charge import (
    charge_answer,
    charge_body,
    charge_bytes,
    charge_unproven,
    charge_work,
    is_owing,
    large_answer,
    page_turn,
    registration_wait_s,
    uncount_registration,
)
from http_edge.listener.body_reads import LARGE_BYTES, BodyReads, in_reading_thread
from http_edge.telemetry.edge_measures import DONE, UNKNOWN, EdgeMeasures
from http_edge.telemetry.refusal_counts import DECENTRL, RefusalCounts
from http_edge.telemetry.request_id import current

_LOG = logging.getLogger(__name__)
_NAME_STAYS: Final = (
    "an identity was erased, but keeps its name in rows of databases that did not answer, %s:"
    " run poste identities erase DID once they do"
)
_SHRUNK: Final = msgspec.structs.replace(refuse(Refusal.TEMPORARILY_UNAVAILABLE))
"""A page of messages that lacks some because they were removed before it was read. Its client would
take it for all that waits."""
_TRIES_MAX: Final = 3
"""Each further one needs another device to remove messages within one reading of a page."""
_UNPROVEN: Final = frozenset(
    {
        Refusal.SENDER_NOT_FOUND,
        Refusal.SENDER_SIGNING_KEY_NOT_FOUND,
        Refusal.INVALID_SIGNATURE,
    }
)
"""Rejections of commands without a valid signature."""
_AS_UNPROVEN: Final = _UNPROVEN | {
    # One signature serves for any number of copies of a command.
    Refusal.DUPLICATE_NONCE,
    # These cost a stranger only a key made for the command: the signature proves no more.
    Refusal.UNAUTHORIZED_COMMAND,
    Refusal.RECIPIENT_NOT_REGISTERED,
    Refusal.COMMUNICATION_CONTRACT_NOT_FOUND,
}
"""Refusals at the price of what proves nothing."""


class _ErasedAccounts(Protocol):
    """Reaches the streams and databases beside an erased identity: ``didcomm.accounts`` has it."""

    async def let_go(self, did: str, command: bytes, step: Erased) -> None: ...
    async def free(self, did: str, command: bytes) -> bool: ...
    async def elsewhere(self, did: str, command: bytes, by: str) -> Sequence[int]: ...


class CommandEndpoint:
    """Answers ``POST /``."""

    def __init__(
        self,
        validator: CommandValidator,
        gateway: Gateway,
        *,
        clock: Clock,
        refusals: RefusalCounts,
        measures: EdgeMeasures,
        erased: _ErasedAccounts,
    ) -> None:
        """An endpoint of one mediator; ``refusals`` counts refused commands."""
        self._erased = erased
        self._did_bytes_max = validator.settings.limits.did_bytes_max
        self._window_ms = validator.settings.protocol.timestamp_window_ms
        self._out_of_range = reject(
            Rejected(
                Refusal.TIMESTAMP_OUT_OF_RANGE,
                f"header.timestamp: is more than {self._window_ms} ms from the mediator's clock, "
                "in Unix milliseconds",
            )
        )
        self._validator = validator
        self._resolver = validator.resolver
        self._gateway = gateway
        self._clock = clock
        self._refusals = refusals
        self._measures = measures
        self._reads = BodyReads()

    async def handle(self, body: bytes) -> Answer:
        """The answer to a request body, whatever it holds."""
        started_s = perf_counter()
        read = partial(envelope.read, body, did_bytes_max=self._did_bytes_max)
        if len(body) > LARGE_BYTES:
            command = await in_reading_thread(read, len(body))
        else:
            command = read()
        if isinstance(command, Rejected):
            self._refusals.count(DECENTRL, "", Refusal.INVALID_COMMAND.value)
            self._measures.commands.add(DECENTRL, UNKNOWN, Refusal.INVALID_COMMAND.value)
            charge_unproven(len(body))
            return reject(command)
        read_s = perf_counter() - started_s
        if takes_long(body, has_floats=command.has_floats):
            charge_body(len(body))
        now_ms = self._clock()
        if abs(now_ms - command.timestamp_ms) > self._window_ms:
            charge_unproven(len(body))
            return self._counted(self._out_of_range, command)
        sender_did = command.sender_did
        key = command_key(sender_did, command.nonce)
        shard = self._gateway.routes.placement.partition_of(sender_did)
        claim = NonceClaim(shard, key, command.timestamp_ms, sender_did=sender_did)
        fetch = self._dids_to_fetch(command) if self._resolver.fetches else []
        if fetch:
            failed = await self._fetch(fetch, claim, len(body))
            if failed is not None:
                return self._counted(failed, command)
            claim = msgspec.structs.replace(claim, proof=Proof.HOLDS_NOW)
        started_s = perf_counter()
        validate = partial(self._validator.validate, command, now_ms / 1000)
        result = await self._reads.read(len(body), validate)
        # Without the time of the fetches over the network.
        self._measures.decode.observe(read_s + perf_counter() - started_s)
        if isinstance(result, Rejected):
            answer, by = await self._reject(command, claim, result, len(body))
            return self._counted(answer, command, by)
        charge, work = costs(result.command)
        charge_work(min(charge, work))
        submission = Submission(
            self._gateway.routes.partition_of(result.target_did),
            result.target_did,
            key,
            claim,
            command=result.command,
            request_id=current(),
            source=source_key(sender_did),
            cost=work,
            charge=charge,
            adds=adds(result.command),
        )
        answer = await self._submit(submission, result, len(body))
        _charge_refused(answer.refusal, len(body))
        return self._counted(answer, command, sender_did)

    async def _reject(
        self, command: CommandEnvelope, claim: NonceClaim, result: Rejected, size_bytes: int
    ) -> tuple[Answer, str]:
        """Claim the nonce of a command that the edge rejects; return the answer and the sender.

        The sender is empty unless the signature is valid.
        """
        by = "" if result.code in _UNPROVEN else command.sender_did
        _charge_refused(result.code, size_bytes)
        submission = Submission(
            claim.partition,
            command.sender_did,
            claim.key,
            claim,
            result.code,
            request_id=current(),
            source=source_key(by),
            charge=1.0 if by else 0.0,
        )
        answer = _refused(await self._gateway.submit(submission), result)
        if result.code not in _AS_UNPROVEN:
            _charge_refused(answer.refusal, size_bytes)
        return answer, by

    def _counted(self, answer: Answer, command: CommandEnvelope, sender_did: str = "") -> Answer:
        """Count the command and any refusal; return the answer.

        ``sender_did`` is empty unless the signature is valid.
        """
        refusal, name = answer.refusal, _name_of(command)
        self._measures.commands.add(
            DECENTRL, name or UNKNOWN, DONE if refusal is None else refusal.value
        )
        # If the outcome is unknown, the command may be stored: that is no refusal.
        if refusal is not None and refusal is not Refusal.TEMPORARILY_UNAVAILABLE:
            self._refusals.count(DECENTRL, name, refusal.value, sender_did)
        return answer

    def _dids_to_fetch(self, command: CommandEnvelope) -> list[str]:
        dids = self._validator.dids_to_resolve(command)
        return [did for did in dids if self._resolver.resolve_now(did) is Fetch.NEEDED]

    async def _fetch(self, dids: list[str], claim: NonceClaim, size_bytes: int) -> Answer | None:
        """Fetch documents once the nonce is claimed; return None, or the answer if one fails.

        The claim comes first, so that a replayed command makes the edge fetch nothing.
        """
        unproven = msgspec.structs.replace(claim, proof=Proof.NOT_YET)
        reply = await self._gateway.submit(
            Submission(claim.partition, claim.sender_did, claim.key, unproven, request_id=current())
        )
        if not isinstance(reply, Done):
            charge_unproven(size_bytes)
            return _refused(reply)
        for did in dids:
            if await self._resolver.resolve(did) is Fetch.NEEDED:
                charge_unproven(size_bytes)
                return refuse(Refusal.TEMPORARILY_UNAVAILABLE)
        return None

    async def _submit(
        self, submission: Submission, result: ValidatedCommand, size_bytes: int
    ) -> Answer:
        """Carry out a command after what comes before it, one step of which uses up its nonce."""
        if result.registered_first is not None:
            checked, submission = await self._check_registered(submission, result.registered_first)
            if not isinstance(checked, Registered):
                return _refused(checked)
        elif isinstance(result.command, Register) and result.command.admitted:
            admitted = await self._admit(submission, result, result.command)
            if isinstance(admitted, Answer):
                return admitted
            submission, result = admitted
        return await self._carry_out(submission, result, size_bytes)

    async def _admit(
        self, submission: Submission, result: ValidatedCommand, command: Register
    ) -> Answer | tuple[Submission, ValidatedCommand]:
        """Admit a registration by the rate of new identities, and by its invitation if it has one.

        A new identity costs a stranger only a key: a rate per sender bounds nothing. One that is
        refused takes nothing from the rate that the admitted ones share.
        """
        wait_s = registration_wait_s()
        if wait_s is None and not result.invitation_id:
            return submission, result
        unclaimed = msgspec.structs.replace(submission, claim=None, charge=0.0, adds=False)
        check = self._aimed(unclaimed, submission.target_did, CheckRegistered(or_was=True))
        known = await self._gateway.submit(check)
        if not isinstance(known, Refused):  # it renews
            return submission, result
        is_given_up = known.code is Refusal.UNAUTHORIZED_COMMAND  # for another DID, in DIDComm
        if not is_given_up and known.code is not Refusal.RECIPIENT_NOT_REGISTERED:
            return refuse(Refusal.TEMPORARILY_UNAVAILABLE)
        if wait_s is not None:
            return refuse(Refusal.RATE_LIMITED, wait_s)
        if is_given_up:
            # It uses no invitation up, even if its DID speaks again by now.
            refused = msgspec.structs.replace(command, admitted=False)
            return submission, msgspec.structs.replace(result, command=refused)
        answer = await self._use_invitation(submission, result)
        return answer or (msgspec.structs.replace(submission, claim=None, charge=0.0), result)

    async def _carry_out(
        self, submission: Submission, result: ValidatedCommand, size_bytes: int, tries: int = 1
    ) -> Answer:
        """Submit a command part by part, then read the page that it requests, if any.

        A page from which messages were removed meanwhile is decided again, as try ``tries`` + 1.
        """
        reply: Reply = Done()
        for number, part in enumerate(parts(result.command)):
            if number:
                # The check of the disk was made for the first part: later parts skip it.
                submission = msgspec.structs.replace(submission, claim=None, charge=0.0, adds=False)
            if part is not submission.command:
                submission = msgspec.structs.replace(submission, command=part, cost=turn_cost(part))
            if isinstance(part, EraseIdentity):
                reply = await self._erase(submission)
            else:
                reply = await self._gateway.submit(submission, size_bytes)
            if isinstance(reply, Refused):
                if result.page is not None and reply.code is Refusal.INVALID_COMMAND:
                    return reject(page_refused(reply, result.page))
                return _refused(reply, result.rejection, result.unregistered)
        if isinstance(reply, MessagesBeside) and result.page is not None:
            where = WaitingAt(reply.versions, reply.total)
            read = Read(result.target_did, result.page, where)
            answer = await self._read_in_turn(read, result)
            if answer is not _SHRUNK or tries == _TRIES_MAX:
                return answer
            again = msgspec.structs.replace(submission, claim=None, charge=0.0)
            return await self._carry_out(again, result, size_bytes, tries + 1)
        if isinstance(result.command, QuerySavedEvents):
            read = Read(result.target_did, result.command.page, result.command.where)
            return await self._read(read, result)
        answer = await answer_to(reply, result.page, result.answer)
        charge_answer(answer.size_bytes)
        return answer

    async def _erase(self, submission: Submission) -> Reply:
        """Erase the sender; if this call is cut short after the first step, the host goes on.

        An identity that spoke for an account that has ended is released from it first. Refused
        while a database is away: once it is erased in its own, the owner can send it no more.
        """
        assert isinstance(submission.command, EraseIdentity)
        target_did, key = submission.target_did, submission.command_key
        if await self._erased.elsewhere(target_did, key, ELSEWHERE_LATER):
            return UNAVAILABLE
        reply = await self._gateway.submit(submission)
        rest = EraseIdentity(CONTINUED, submission.command.records_max)
        submission = msgspec.structs.replace(submission, claim=None, charge=0.0)
        if reply == Refused(Refusal.INVALID_COMMAND) and await self._erased.free(target_did, key):
            reply = await self._gateway.submit(submission)
        if not isinstance(reply, Erased):
            return reply
        await self._erased.let_go(target_did, key, reply)
        if away := await self._erased.elsewhere(target_did, key, ELSEWHERE):
            _LOG.error(_NAME_STAYS, away, extra={"did": target_did})
        submission = msgspec.structs.replace(submission, command=rest)
        while isinstance(reply, Erased) and not reply.is_over:
            reply = await self._gateway.submit(submission)
        return reply

    async def _check_registered(self, submission: Submission, did: str) -> tuple[Reply, Submission]:
        """Check that an identity is registered; return the reply, and the submission to send next.

        The nonce is stored with the command's effect: a refused stranger leaves nothing in the log.
        """
        claim = submission.claim
        assert claim is not None
        is_new = claim.proof is Proof.HOLDS
        early = msgspec.structs.replace(claim, proof=Proof.NOT_YET) if is_new else None
        check = self._aimed(submission, did, CheckRegistered())
        checked = await self._gateway.submit(msgspec.structs.replace(check, claim=early))
        late = msgspec.structs.replace(claim, proof=Proof.HOLDS_NOW)
        return checked, msgspec.structs.replace(submission, claim=late, charge=0.0)

    async def _read_in_turn(self, read: Read, result: ValidatedCommand) -> Answer:
        """Read a large page while no other request of the address reads one.

        Refuse it if too many of its requests wait.
        """
        with large_answer() as has_slot:
            if not has_slot:
                return refuse(Refusal.RATE_LIMITED)
            async with page_turn():
                return await self._read(read, result)

    async def _read(self, read: Read, result: ValidatedCommand) -> Answer:
        """Read the page that the identity allowed the command to read, unless the address owes.

        Charge for it as soon as it is here: other requests of the address wait to be read.
        """

        def answering(page: FoundPage) -> Answer:
            matched = read.where.total if isinstance(read.where, WaitingAt) else 0
            if isinstance(page, MessagesPage) and page.total < matched:
                return _SHRUNK
            return result.answer(page, result.page)

        found = await self._gateway.read(read, is_owing=is_owing)
        if isinstance(found, Refused):
            if found.code is Refusal.INVALID_COMMAND:
                # The page is too large, and was read all the same.
                charge_answer(read.page.bytes_max or 0)
            return reject(page_refused(found, read.page))
        charge_answer(len(found))
        answer = await answer_of(found, answering)
        charge_answer(answer.size_bytes, read_bytes=len(found))
        return answer

    async def _use_invitation(
        self, submission: Submission, result: ValidatedCommand
    ) -> Answer | None:
        """Use up the invitation and the nonce of a registration; return None, or why it fails."""
        command = UseInvitation(result.target_did)
        use = self._aimed(submission, invitation_target(result.invitation_id), command)
        reply = await self._gateway.submit(use)
        if not isinstance(reply, Refused):
            return None
        if reply.code is Refusal.INVITATION_USED:
            uncount_registration()
            return reject(INVITATION_USED)
        return _refused(reply)

    def _aimed(self, submission: Submission, target_did: str, command: Command) -> Submission:
        """The submission of a step for another identity, before the command itself."""
        return msgspec.structs.replace(
            submission,
            partition=self._gateway.routes.partition_of(target_did),
            target_did=target_did,
            command=command,
            cost=turn_cost(command),
        )


def _refused(reply: object, *rejections: Rejected | None) -> Answer:
    """The answer to a refusal by the host, with the detail of the rejection of the same code."""
    assert isinstance(reply, Refused), f"{type(reply).__name__} is no refusal"
    for rejection in rejections:
        if rejection is not None and reply.code is rejection.code:
            return reject(rejection)
    return refuse(reply.code, reply.retry_after_s or None)


def _charge_refused(refusal: Refusal | None, size_bytes: int) -> None:
    """Charge the address for reading a command that is refused, or not, for this reason."""
    if refusal in _AS_UNPROVEN:
        charge_unproven(size_bytes)
    elif refusal is Refusal.RATE_LIMITED:
        charge_bytes(size_bytes)


def _name_of(command: CommandEnvelope) -> str:
    """The name of the command if it is known, else empty: never a text that the sender chose."""
    if command.channel == "TWO_WAY_PRIVATE":
        return command.channel
    kind = command.payload.get("type") if isinstance(command.payload, dict) else None
    return kind if isinstance(kind, str) and kind in TYPES else ""
