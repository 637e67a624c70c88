"""``poste restore`` says of a target that it must not restore into what may be in it."""

from __future__ import annotations

from eventstore.log.errors import ImportRefused, TargetHoldsLog
from http_edge.cli.restore import _ENDINGS
from http_edge.server.exits import Exit, stop_after


def test_only_a_target_with_a_whole_log_is_said_to_be_perhaps_restored() -> None:
    refusals = [
        TargetHoldsLog("it holds the log of did:x:y"),
        ImportRefused("it holds an unfinished restore of did:x:y"),
    ]
    whole, begun = [stop_after(refused, _ENDINGS) for refused in refusals]
    assert whole is not None
    assert begun is not None
    assert whole.exit_code == begun.exit_code == Exit.USAGE
    assert "that log is whole" in whole.remedy
    assert begun.remedy == "Name an empty data directory or database with --to."
