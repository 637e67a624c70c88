"""``poste``: the group of commands, and how every command ends.

Only the module of the called command is imported: ``poste --help`` shows the summaries below and
imports neither Ray nor the server.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Final, NoReturn

import click

from eventstore.log import errors
from http_edge.cli import projections_program
from http_edge.cli.entry import interrupted
from http_edge.server.exits import UNUSABLE_LOG, Endings, Exit, Stop, stop_after

SUMMARIES: Final[Mapping[str, str]] = {
    "serve": "Run the mediator.",
    "status": "Show what a running mediator holds and does.",
    "invite": "Make an invitation to this mediator, as a URL and a QR code for wallets.",
    "queue": "Show the queues of a running mediator; empty a queue.",
    "shards": "Show which hosts own the shards of a running mediator; move shards.",
    "identities": "Give identities dedicated hosts, return them to their shards; erase identities.",
    "demo": "Walk Alice and Bob through a whole protocol against a running mediator.",
    "bench": "Put a bounded load on a running mediator and show how it answers.",
    "keys": "Show the mediator's DID and public keys; create the keys at first use.",
    "log": "Check the event log; move old rows to its archive.",
    "verify": "Check an export; with --live compare the mediator's memory with it.",
    "export": "Write the event log to immutable, signed Parquet files.",
    "proof": "Check proofs from the log offline; show that one head continues another.",
    "restore": "Restore a log from its export, or move it to another store.",
    "audit": "Show from an export what happened to a message or an identity.",
    **projections_program.SUMMARIES,
    "config": "Show the settings in force, and all available settings.",
}
_NAME_THE_LOG: Final = "Name the log with --log, --data-dir or --from."
_CHECK_THE_LOG: Final = "See: poste log verify"
_ENDINGS_OF_LOG: Final[Endings] = {
    **UNUSABLE_LOG,
    errors.LogMissing: (Exit.UNREACHABLE, "{}", _NAME_THE_LOG),
    errors.LogFull: (Exit.UNREACHABLE, "the event log has no room on its disk: {}",
        "Make room there, then run this again: deploy/runbooks/disk-full.md."),
    errors.RowsLeft: (Exit.UNREACHABLE, "{}",
        "Check again with a longer time between rounds: archive.every_s."),
    errors.ReadCancelled: (Exit.UNREACHABLE, "the event log cannot be read: {}",
        "Repeat it at the primary, or raise max_standby_streaming_delay at the standby."),
    errors.LogUnavailable: (Exit.UNREACHABLE, "the event log cannot be read: {}", _NAME_THE_LOG),
    errors.ReadModelsMissing: (Exit.UNSAFE, "the log cannot be used: {}", ""),
    errors.SeamRefused: (Exit.UNSAFE, "the seam of the log: {}", _CHECK_THE_LOG),
    errors.NotAsSealed: (Exit.UNSAFE, "{}", _CHECK_THE_LOG),
    errors.UnsafeLog: (Exit.UNSAFE, "UnsafeLog: {}", _CHECK_THE_LOG),
    errors.UnknownTopic: (Exit.UNSAFE, "UnknownTopic: {}", _CHECK_THE_LOG),
    errors.CorruptRow: (Exit.UNSAFE, "CorruptRow: {}", _CHECK_THE_LOG),
}  # fmt: skip
_NOT_READ: Final = 141  # 128 + SIGPIPE


class LazyGroup(click.Group):
    """A group whose commands live in ``http_edge.cli.<name>`` and are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names, in the order of use."""
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name, imported now."""
        if cmd_name not in SUMMARIES:
            return None
        if cmd_name in projections_program.SUMMARIES:
            return projections_program.projections_command(cmd_name)
        command = getattr(import_module(f"http_edge.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The summaries, without an import."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), code.means) for code in Exit])


@click.group(cls=LazyGroup, context_settings={"show_default": True})
@click.version_option(package_name="poste-restante", prog_name="poste")
def poste() -> None:
    """Poste holds encrypted messages until their owner acknowledges them."""


def explained(error: BaseException) -> Stop | None:
    """The explanation of an expected failure for the user; None for a fault of the program."""
    from http_edge.crypto.private_files import KeyFileRefused  # noqa: PLC0415
    from http_edge.settings.sources import SettingRefused  # noqa: PLC0415

    match error:
        case SettingRefused():
            return Stop(Exit.USAGE, str(error), "All settings: poste config reference")
        case KeyFileRefused():
            return Stop(Exit.UNSAFE, str(error))
        case errors.LogError():
            return stop_after(error, _ENDINGS_OF_LOG)
        case BrokenPipeError():
            return None  # the reader of the output has ended; click and rich handle that
        case OSError(errno=errno.ENOSPC | errno.EDQUOT, filename=path):  # stdout has no name
            reason = f"{path or 'the output'} cannot be written: {error.strerror}"
            return Stop(Exit.UNWRITTEN, reason, "Check what it changed before you repeat it.")
        case PermissionError(filename=str(path)):
            remedy = "Run it as the owner of the file, or name a place that this user can access."
            return Stop(Exit.USAGE, f"{path} cannot be used: {error.strerror}", remedy)
        case OSError(filename=path):
            # Only a name that is wrong says that nothing was done: a disk can fail at any time.
            code = Exit.USAGE if error.errno in errors.OF_WRONG_PATHS else Exit.UNREACHABLE
            return Stop(code, f"{path} cannot be used: {error.strerror}" if path else str(error))
        case _:
            return None


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit, without a traceback for a failure that a user can mend."""
    _open_closed_streams()
    if isinstance(sys.stdout, TextIOWrapper):  # as for stderr: the terminal may be older than UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _result(args)
    except click.Abort:
        code = interrupted()
    except SystemExit:
        # Click and rich exit so, without a message, if the reader of the output has ended.
        code = _NOT_READ
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the last resort, also for a panic of Rust
        code = _shown(error)
    sys.exit(code if isinstance(code, int) else Exit.OK)


def _open_closed_streams() -> None:
    """Open the null device in place of standard streams that the caller has closed.

    Otherwise the next file to be opened would get the number of one, and with it what libraries
    and other programs print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            lowest_free = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(lowest_free, True)  # noqa: FBT003 - its signature
            setattr(sys, name, os.fdopen(lowest_free, mode))


def _result(args: Sequence[str] | None) -> object:
    """Run the command: its exit code, or another value for success."""
    try:
        return poste.main(args, prog_name="poste", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as no_arguments:
        group = no_arguments.ctx.command_path.split()[1:]
        return poste.main([*group, "--help"], prog_name="poste", standalone_mode=False)


def _shown(error: BaseException) -> int:
    """Print the explanation of a failure; return its exit code, also if printing fails."""
    stop = error if isinstance(error, click.ClickException) else explained(error)
    with suppress(OSError):
        if stop is not None:
            stop.show()
        else:
            traceback.print_exception(error)
            click.echo("poste: a fault of poste itself; please report the lines above", err=True)
    return Exit.INTERNAL if stop is None else int(stop.exit_code)
