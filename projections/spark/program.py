"""The parts that all Spark commands share: options, progress, errors and exit codes.

A command is a click command in a module of its own (``<name>.py`` or ``<name>/program.py``), with
the options of ``session_options``, and does its work inside ``explaining()``.
"""

from __future__ import annotations

import errno
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from eventstore.log.errors import OF_WRONG_PATHS
from eventstore.log.pseudonyms import KeyRefused, read_key
from eventstore.log.public_key import read_public_key
from eventstore.parquet import opening
from eventstore.parquet.errors import (
    ExportError,
    ExportUnavailable,
    RowsPruned,
    SignedByAnother,
)
from eventstore.parquet.opening import NoExport, NotExported
from projections.errors import INTERNAL, UNREACHABLE, UNSAFE, UNWRITTEN, USAGE, ProjectionError
from projections.spark.session import MEMORY_MIB

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

_T = TypeVar("_T")
_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it
_NOT_READ: Final = 141  # 128 + SIGPIPE
_CAUSE: Final = re.compile(r"\[[A-Z_.]+\] [^\n]*")
_JAVA_CAUSE: Final = re.compile(r"^\s*Caused by: (?:[\w$]+\.)*([\w$]+(?:: [^\n]+)?)", re.MULTILINE)
_JAVA: Final = re.compile(r"^: (?:[\w$]+\.)*([\w$]+(?:: [^\n]+)?)", re.MULTILINE)
_MASTER: Final = re.compile(
    r"local(\[(\d+|\*)(, *\d+)?\])?|local-cluster\[.+\]|spark://.+|k8s://.+|yarn"
)
_HINTS: Final = {
    "S3AFileSystem not found": ": Spark reads s3 with the package org.apache.hadoop:hadoop-aws of"
    " its release of Hadoop: name it with spark.jars.packages or spark.jars",
    'No FileSystem for scheme "': ": Spark has no connector for this kind of store: name its jar"
    " with spark.jars",
}


def parsed(
    parse: Callable[[str], _T], refused: type[Exception] = ValueError
) -> Callable[[str], _T]:
    """The same function, but with a BadParameter in place of ``refused``."""

    def run(text: str) -> _T:
        try:
            return parse(text)
        except refused as error:
            raise click.BadParameter(str(error)) from error

    return run


point_in_log: Final = parsed(opening.point_in_log)
pseudonym_key: Final = parsed(read_key, KeyRefused)
signer_in: Final = parsed(read_public_key)
as_of_option: Final = click.option(
    "--as-of",
    type=point_in_log,
    metavar="TIME|POSITION",
    help="Use the log as of then; else all of it.",
)
public_key_option: Final = click.option(
    "--public-key",
    "signer",
    type=signer_in,
    metavar="KEY",
    help=(
        "The mediator's public key, as poste keys and its DID document show it; refuse"
        " signatures by other keys."
    ),
)
pseudonymise_option: Final = click.option(
    "--pseudonymise",
    "key",
    type=pseudonym_key,
    metavar="KEYFILE",
    help="Replace names by their hash with the key in this file.",
)


def _said_if_skipped(_: click.Context, __: click.Parameter, skips: bool) -> bool:  # noqa: FBT001
    if skips:
        click.echo("The data files are not compared with what was signed.", err=True)
    return skips


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to read an export: ``master``, ``memory_mib``, ``skip_hashes``."""
    for option in (
        click.option(
            "--skip-hashes",
            is_flag=True,
            callback=_said_if_skipped,
            help="Do not verify data files: changes to them go undetected.",
        ),
        click.option(
            "--memory-mib",
            type=click.IntRange(512),
            default=MEMORY_MIB,
            show_default=True,
            help="Heap size of local Java.",
        ),
        click.option(
            "--master",
            callback=_master,
            help="Spark master, e.g. local[2]; else all cores of this machine.",
        ),
    ):
        command = option(command)
    return command


def _master(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Check ``--master`` here: Java would report a bad one in a long error of its own."""
    if text is not None and not _MASTER.fullmatch(text):
        said = "is not of the form local, local[2], spark://HOST:PORT, k8s://HOST:PORT or yarn"
        raise click.BadParameter(f"{text!r} {said}")
    return text


source_option: Final = click.option(
    "--from",
    "source",
    required=True,
    help="The export, or the place of those of all databases: a folder or a URI.",
)
json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON, not tables.")


class Program(click.Group):
    """Commands that always end with an exit code of ``projections.errors`` or the shell's."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        """Run the command line and exit; show a traceback only for a fault of the program."""
        try:
            code = super().main(*args, **options | {"standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as no_arguments:
            click.echo(no_arguments.format_message())
            code = 0
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except click.Abort:
            code = _INTERRUPTED
        except SystemExit:
            code = _NOT_READ  # click exits like this if the reader of the output has ended
        except OSError as error:
            click.echo(f"{self.name}: {error}", err=True)
            code = _code_of(error)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - the last resort, also for a panic of Rust
            traceback.print_exc()
            click.echo("a fault of poste itself; please report the lines above", err=True)
            code = INTERNAL
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; on an interrupt exit without a message, as the caller shows one."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(_INTERRUPTED) from None


def _code_of(error: OSError) -> int:
    """The exit code after this error: a disk can fail at any time, a wrong name before all."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return UNWRITTEN
    return USAGE if error.errno in OF_WRONG_PATHS else UNREACHABLE


@contextmanager
def explaining() -> Iterator[None]:
    """Turn errors of the block into one sentence and an exit code; also usable as a decorator.

    Raises:
        Ended: says why the work failed, and names the file at fault, if there is one.
    """
    try:
        yield
    except ProjectionError as error:
        raise Ended(error.exit_code, str(error)) from error
    except NoExport as error:
        raise Ended(UNREACHABLE, str(error)) from error
    except (NotExported, RowsPruned) as error:
        raise Ended(USAGE, str(error)) from error
    except ExportUnavailable as error:
        raise Ended(UNREACHABLE, f"cannot be read or written now: {error}") from error
    except SignedByAnother as error:
        raise Ended(UNSAFE, str(error)) from error
    except ExportError as error:
        raise Ended(UNSAFE, f"the export is damaged: {error}") from error
    except (PySparkException, Py4JError) as error:
        # Mostly a file that changed after its check, or a target that cannot be written.
        raise Ended(UNREACHABLE, cause(str(error))) from error


class Ended(click.ClickException):
    """The end of a program that could not do its work."""

    def __init__(self, exit_code: int, message: str) -> None:
        """``message`` says why."""
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance
        context = click.get_current_context(silent=True)
        self._program = context.find_root().info_name if context else None

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the reason on stderr, after the name of the program that was typed."""
        click.echo(f"{self._program or 'projections'}: {self.message}", file=file or sys.stderr)


def progress_steps(label: str, count: int) -> ProgressBar[str]:
    """A bar on stderr of the steps of a program, hidden if that is no terminal.

    The first step starts Spark; ``update(1, step)`` ends a step and names another.
    """
    return click.progressbar(
        length=count,
        label=label,
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
        item_show_func=lambda step: step or "Spark",
        show_pos=True,
    )


def cause(text: str) -> str:
    """The cause in a message of Spark, which names the file; the rest is the state of its threads.

    In an error of Java it is the innermost cause: the first line only names a call.
    """
    causes: list[str] = _CAUSE.findall(text) or _JAVA_CAUSE.findall(text) or _JAVA.findall(text)
    found = causes[-1] if causes else text.strip().splitlines()[0]
    hint = next((said for sign, said in _HINTS.items() if sign in found), "")
    return f"{found}{hint}"
