"""Who speaks for an account, in the plainest form: rotated DIDs, grants, the end."""

from __future__ import annotations

from actors.core import commands as c
from actors.core import replies as r
from actors.core.refusals import Refusal
from tests.model.agents_reference import LIMITS, NO_RULES, Agent

ON_ACCOUNTS = c.FindAccount | c.NameSpeaker | c.UnnameSpeaker | c.RotateAccount | c.EndAccount


def against_the_speaker(did: str, agent: Agent, speaker: str) -> Refusal | None:
    """Why a DID does not speak for this one; the mediator itself is no DID."""
    if agent.account:
        return Refusal.SPEAKS_FOR_ANOTHER
    return Refusal.NOT_SPEAKING if speaker not in ("", agent.speaker or did) else None


def on_an_account(did: str, agent: Agent, command: c.Command, now_ms: int) -> r.Reply | Refusal:
    """The commands of ``ON_ACCOUNTS``."""
    match command:
        case c.FindAccount(keys, in_question):
            known = [key for key in keys if key in agent.keylist]
            connected = agent.connection is not None
            from_s = int(max(agent.rotated_s, agent.ended_s))
            fits = _fits(agent, [c.ClaimedKey(key, 0) for key in keys])
            speaker = agent.speaker or did
            is_new = in_question not in {"", did, *agent.spoke}
            return r.AccountFound(agent.account, speaker, connected, known, from_s, fits, is_new)
        case c.NameSpeaker(account):
            if agent.account != account:
                is_given_up = agent.speaker not in ("", did)
                if agent.account or agent.connection is not None or is_given_up:
                    return Refusal.KEY_TAKEN
                agent.account = account
                agent.version += 1
            return r.Done()
        case c.UnnameSpeaker(account):
            if agent.account == account:
                agent.account = ""
                agent.version += 1
            return r.Done()
        case c.RotateAccount():
            return _rotate(did, agent, command)
        case c.EndAccount():
            return _end(did, agent, command, now_ms)
        case _:
            raise AssertionError(command)


def grant(agent: Agent, command: c.GrantMediation) -> r.Reply | Refusal:
    """Connection, grant and own names, all or none."""
    if agent.connection is None and command.connection is None:
        return Refusal.NOT_CONNECTED
    if not _fits(agent, command.own):
        return Refusal.QUOTA_EXCEEDED
    _state(agent, command.connection)
    agent.version += not agent.mediated
    agent.mediated = True
    _take_in(agent, command.own)
    return r.Done()


def _rotate(did: str, agent: Agent, command: c.RotateAccount) -> r.Reply | Refusal:
    if agent.connection is None:
        return Refusal.NOT_CONNECTED
    speaks, moves = agent.speaker or did, (agent.speaker or did) != command.speaker_did
    is_old = command.issued_at_s < max(agent.rotated_s, agent.ended_s)
    if moves and (speaks != command.prior_did or is_old):
        return Refusal.NOT_SPEAKING
    if not _fits(agent, command.own):
        return Refusal.QUOTA_EXCEEDED
    if moves:
        agent.speaker, agent.rotated_s = command.speaker_did, command.issued_at_s
        agent.spoke = [*(did for did in agent.spoke if did != agent.speaker), agent.speaker]
        agent.version += 1
        prior = agent.connection.peer_did
        agent.given_up = [*(did for did in agent.given_up if did != prior), prior]
    _state(agent, command.connection)
    _take_in(agent, command.own)
    return r.Done()


def _end(did: str, agent: Agent, command: c.EndAccount, now_ms: int) -> r.Reply | Refusal:
    if command.speaker_did != (agent.speaker or did):
        return Refusal.NOT_SPEAKING
    if agent.connection is None or command.issued_at_s <= agent.ended_s:
        return r.AccountOver([])
    agent.remove([m.message_id for m in agent.messages if m.key is not None], now_ms)
    over = [c.ClaimedKey(key, claim) for key, claim in agent.keylist.items()]
    agent.version += 1 + bool(over)
    agent.keylist, agent.connection, agent.mediated = {}, None, False
    agent.own_rules, agent.refusing, agent.ended_s = NO_RULES, False, command.issued_at_s
    agent.given_up, agent.device = [], None
    return r.AccountOver(over)


def _fits(agent: Agent, own: list[c.ClaimedKey]) -> bool:
    new = {each.key for each in own} - set(agent.keylist)
    return not new or len(agent.keylist) + len(new) <= LIMITS.keylist_keys_max


def _state(agent: Agent, stated: c.Connection | None) -> None:
    if stated is not None:
        agent.version += stated != agent.connection
        agent.connection = stated


def _take_in(agent: Agent, own: list[c.ClaimedKey]) -> None:
    newer = {each.key: each.claim for each in own if each.claim > agent.keylist.get(each.key, 0)}
    agent.version += bool(newer)
    agent.keylist |= newer
