"""The options for settings, which are the same on every command that needs settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import click

from http_edge.server.exits import Exit, Stop, escaped
from http_edge.settings.reference import RETIRED, Setting, every_setting, in_words
from http_edge.settings.sources import CONFIG_VARIABLE, load_settings

Result = TypeVar("Result")


def with_settings(*names: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Give a command ``--config``, ``--set`` and a flag per named setting, and pass it ``loaded``.

    Only this function reads the environment.

    Raises:
        SettingRefused: from the command, if a source is refused.
    """

    def decorate(command: Callable[..., Result]) -> Callable[..., Result]:
        @wraps(command)
        def run(config: Path | None, assignments: tuple[str, ...], **options: Any) -> Result:
            flags = dict(map(_assignment, assignments))
            flags |= {name: text for name in names if (text := options.pop(name)) is not None}
            loaded = load_settings(flags, os.environ, config)
            for note in loaded.notes:
                click.echo(f"poste: {escaped(note)}", err=True)
            return command(loaded=loaded, **options)

        for name in reversed(names):
            flag = "--" + name.replace("_", "-")
            if name in RETIRED:  # accepted here, then refused with the setting to use
                run = click.option(flag, name, hidden=True)(run)
                continue
            setting = every_setting()[name]
            run = click.option(flag, name, metavar=_metavar(setting), help=_help(setting))(run)
        run = click.option(
            "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Any setting by name."
        )(run)
        return click.option(
            "--config",
            type=click.Path(path_type=Path),
            help=f"TOML file of settings; else the one that {CONFIG_VARIABLE} names.",
        )(run)

    return decorate


def _metavar(setting: Setting) -> str:
    """The placeholder for the value in the help: the choices, if there are any."""
    match setting.kind:
        case {"enum": choices}:
            return f"[{'|'.join(choices)}]"
        case {"format": "path"}:
            return "PATH"
        case {"type": "integer" | "number"}:
            return "NUMBER"
        case _:
            return "TEXT"


def _help(setting: Setting) -> str:
    """The reason of a setting, its default and its bounds; the reason explains an unset default."""
    facts = [] if setting.default is None else [f"default: {setting.default}"]
    if _metavar(setting) == "NUMBER" or "expected" in setting.kind:
        facts.append(in_words(setting.kind))
    return f"{setting.reason}  [{'; '.join(facts)}]" if facts else setting.reason


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
    return name, value


def is_missing(dsn: str) -> bool:
    """Is the log a file that is missing, so that opening would make it?"""
    return urlsplit(dsn).scheme == "sqlite" and not _file_of(dsn).is_file()


def require_existing(dsn: str, *, to_read: bool = False) -> None:
    """Refuse a missing log: opening would make an empty one, in which no check finds a fault.

    ``to_read`` prints what it means if the file cannot be written, such as that of a backup.

    Raises:
        Stop: there is no such file.
    """
    if is_missing(dsn):
        remedy = "Name it with --log or --data-dir."
        raise Stop(Exit.UNREACHABLE, f"there is no log at {_file_of(dsn)}", remedy)
    if to_read and dsn.startswith("sqlite:"):
        # Imported here: the help of a command does without it.
        from eventstore.stores.sqlite_connections import is_taken_as_fixed  # noqa: PLC0415

        if is_taken_as_fixed(_file_of(dsn)):
            said = (
                "is not writable, so it is read on the assumption that it does not change meanwhile"
            )
            click.echo(f"poste: {escaped(str(_file_of(dsn)))} {said}", err=True)


def _file_of(dsn: str) -> Path:
    return Path(unquote(urlsplit(dsn).path))
