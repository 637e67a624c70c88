"""Load settings from defaults, TOML file, environment and command line; later sources win.

Nothing is guessed or ignored: an unknown name, also that of a ``POSTE_`` variable, or an invalid
value is refused with its name. See ``http_edge.settings.reference`` for the names.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from http_edge.settings.reference import (
    PREFIX,
    RETIRED,
    Setting,
    every_setting,
    former_names,
    variable_of,
)
from http_edge.settings.settings import Section, Settings

CONFIG_VARIABLE: Final = "POSTE_CONFIG"
DEFAULT: Final = "default"
COMMAND_LINE: Final = "command line"

# Kubernetes and Docker describe a service named "poste" to the containers beside it.
_SERVICE_LINK: Final = re.compile(r"POSTE_(SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP)\w*)?)")
_PLAIN: Final[Mapping[str, TypeAdapter[Any]]] = {
    "boolean": TypeAdapter(bool),
    "integer": TypeAdapter(int),
    "number": TypeAdapter(float),
}
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
"""NUL, and what Python reads where bytes are not UTF-8."""
_USER_PASSWORD: Final = re.compile(r"(://[^:/@?]*):.*@")
_QUERY_PASSWORD: Final = re.compile(r"(password=)[^&]*(&[^&=]*(?=&|$))*")
_S = TypeVar("_S", bound=Section)


class SettingRefused(Exception):
    """A setting is unknown, does not fit, or its source cannot be read.

    Attributes:
        name: The setting as ``section.field``, or the unknown name, or the file.
        source: Where it was set: a file, a variable, the command line.
        expected: What would have been valid.
    """

    def __init__(self, name: str, source: str, expected: str) -> None:
        super().__init__(f"{name} from {source}: expected {expected}")
        self.name = name
        self.source = source
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and by name the source of each value.

    ``notes`` are sentences for the user, one for each setting that was set by a former name.
    """

    settings: Settings
    sources: dict[str, str]
    notes: tuple[str, ...] = ()


class _Given(NamedTuple):
    """A value as one source gives it."""

    name: str
    """The name that the source uses, perhaps a former one."""
    value: Any
    """A JSON value; None is unset."""
    source: str


def load_settings(
    flags: Mapping[str, str], environ: Mapping[str, str], config_path: Path | None = None
) -> Loaded:
    """Read all sources once and validate the result.

    ``flags`` are texts by setting name. Without ``config_path`` the file is the one that
    ``POSTE_CONFIG`` names, if any. Paths become absolute, because processes with other working
    directories get the settings.

    Raises:
        SettingRefused: a source cannot be read or names an unknown setting, or a value is invalid.
    """
    in_order = [list(_from_environment(environ)), list(_from_flags(flags))]
    if config_path is None and (named := environ.get(CONFIG_VARIABLE)):
        config_path = Path(named)
    if config_path is not None:
        in_order.insert(0, list(_from_file(config_path)))
    values: dict[str, Any] = {}
    sources = dict.fromkeys(every_setting(), DEFAULT)
    notes: list[str] = []
    for source in in_order:
        for given in _by_present_names(source, notes):
            _refuse_unfit(given)
            values[given.name] = given.value
            sources[given.name] = given.source
    settings = _validated(values, sources)
    return Loaded(_with_absolute_paths(settings, sources), sources, tuple(notes))


def shown(settings: Settings) -> dict[str, Any]:
    """Every value in force by name, for display: passwords in addresses are masked."""
    values = settings.model_dump(mode="json")
    log = " ".join(map(_masked, settings.log_dsns))
    values |= {"public_url": settings.url, "did": settings.mediator_did, "log": log}
    if settings.export.to is not None:
        values["export"]["to"] = _masked(settings.export.to)
    return {
        setting.name: (values[setting.section] if setting.section else values)[setting.field]
        for setting in every_setting().values()
    }


def _with_absolute_paths(section: _S, sources: Mapping[str, str], of: str = "") -> _S:
    """A section and those in it, whose names begin with ``of``, with absolute paths.

    Raises:
        SettingRefused: a path begins with ``~`` of a user without a known home directory.
    """
    update: dict[str, Any] = {}
    for field, value in section:
        name = of + field
        if isinstance(value, Path):
            try:
                update[field] = value.expanduser().absolute()
            except RuntimeError as error:
                known = "a path from a home directory that is known"
                raise SettingRefused(name, sources[name], known) from error
        elif isinstance(value, Section):
            update[field] = _with_absolute_paths(value, sources, f"{name}.")
    return section.model_copy(update=update)


def _masked(address: str) -> str:
    return _QUERY_PASSWORD.sub(r"\1***", _USER_PASSWORD.sub(r"\1:***@", address))


def _from_file(path: Path) -> Iterator[_Given]:
    source = str(path)
    try:
        # Editors on Windows put a byte order mark before the text.
        tables = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingRefused("the file", source, f"readable TOML ({error})") from error
    for name, value in _flat(tables, source):
        setting = _known(name, source)
        yield _Given(name, None if value == "" and setting.may_be_unset else value, source)


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    known = {variable_of(name): name for name in (*every_setting(), *former_names())}
    for variable in environ.keys() - {*known, CONFIG_VARIABLE}:
        if variable.startswith(PREFIX) and not _SERVICE_LINK.fullmatch(variable):
            raise SettingRefused(variable, "the environment", _nearest(variable, known))
    for variable, name in known.items():
        if (text := environ.get(variable)) is not None:
            yield _Given(name, _typed(_known(name, variable), text), variable)


def _from_flags(flags: Mapping[str, str]) -> Iterator[_Given]:
    for name, text in flags.items():
        yield _Given(name, _typed(_known(name, COMMAND_LINE), text), COMMAND_LINE)


def _flat(tree: Mapping[str, Any], source: str) -> Iterator[tuple[str, Any]]:
    """The values of a tree of sections by their full names.

    Raises:
        SettingRefused: a section is not a table.
    """
    names = (*every_setting(), *former_names())
    sections = {name.rpartition(".")[0] for name in names} - {""}
    for name, value in tree.items():
        if name not in sections:
            yield name, value
        elif isinstance(value, dict):
            yield from ((f"{name}.{field}", inner) for field, inner in value.items())
        else:
            raise SettingRefused(name, source, f"a table [{name}]")


def _by_present_names(source: Sequence[_Given], notes: list[str]) -> Iterator[_Given]:
    """The values of one source by present names; ``notes`` gets a sentence for each former name.

    Raises:
        SettingRefused: the source uses both names of a setting.
    """
    for given in source:
        present = former_names().get(given.name, given.name)
        if present != given.name:
            if any(other.name == present for other in source):
                expected = f"{present} alone, which is its name now and is set too"
                raise SettingRefused(given.name, given.source, expected)
            notes.append(
                f"{given.name} from {given.source} is called {present} now; the former name still"
                " works"
            )
        yield given._replace(name=present)


def _refuse_unfit(given: _Given) -> None:
    """Refuse what JSON cannot carry, NUL, which no path has, and ``s3://bucket`` for a path.

    That would be a folder ``s3:`` of this machine. JSON carries no deeply nested lists either.

    Raises:
        SettingRefused: the value has such a character, or a list within a list, or is a path with
            ``://``.
    """
    texts = given.value if isinstance(given.value, list) else [given.value]
    if any(isinstance(text, list) for text in texts):
        expected = every_setting()[given.name].expected
        raise SettingRefused(given.name, given.source, expected)
    if any(isinstance(text, str) and _NO_TEXT.search(text) for text in texts):
        raise SettingRefused(given.name, given.source, "text in UTF-8 without NUL")
    is_path = every_setting()[given.name].kind.get("format") == "path"
    if is_path and "://" in str(given.value):
        raise SettingRefused(given.name, given.source, "a path on this machine, not a URI")


def _known(name: str, source: str) -> Setting:
    """The setting of this name, perhaps a former one.

    Raises:
        SettingRefused: no setting has this name.
    """
    if setting := every_setting().get(former_names().get(name, name)):
        return setting
    raise SettingRefused(name, source, _nearest(name, every_setting()))


def _nearest(name: str, names: Iterable[str]) -> str:
    for retired, instead in RETIRED.items():
        if name in {retired, variable_of(retired)}:
            return instead
    near = difflib.get_close_matches(name, names, n=1)
    return f"a known setting, perhaps {near[0]}" if near else "a known setting"


def _typed(setting: Setting, text: str) -> Any:
    """Convert a text to the JSON type of the setting; return it unchanged if that fails.

    Validation then says what was expected, in the same words for every source.
    """
    if text == "" and setting.may_be_unset:
        return None
    kind = setting.kind["type"]
    if kind == "array":
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind == "string":
        return text
    try:
        return _PLAIN[kind].validate_strings(text)
    except ValidationError:
        return text


def _validated(values: Mapping[str, Any], sources: Mapping[str, str]) -> Settings:
    """Make the whole tree from values by name.

    Raises:
        SettingRefused: a value is invalid, or two contradict each other.
    """
    tree: dict[str, Any] = {}
    for name, value in values.items():
        setting = every_setting()[name]
        (tree.setdefault(setting.section, {}) if setting.section else tree)[setting.field] = value
    try:
        # As JSON, so that strictness holds for types (no "1" for 1) but not for containers.
        return Settings.model_validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        raise _refusal(error.errors()[0], sources) from None


def _refusal(error: ErrorDetails, sources: Mapping[str, str]) -> SettingRefused:
    section = str(error["loc"][0]) + "." if error["loc"] else ""
    if error["type"] == "contradiction":
        smaller, larger = section + error["ctx"]["smaller"], section + error["ctx"]["larger"]
        times = error["ctx"]["times"]
        if sources[smaller] == DEFAULT:
            least = smaller if times == 1 else f"{times} times {smaller}"
            return SettingRefused(larger, sources[larger], f"at least {least}")
        most = larger if times == 1 else f"{larger} divided by {times}"
        return SettingRefused(smaller, sources[smaller], f"at most {most}")
    if error["type"] == "unfit":
        name = section + error["ctx"]["name"]
        return SettingRefused(name, sources[name], error["ctx"]["expected"])
    path = list(accumulate(map(str, error["loc"]), "{}.{}".format))
    name = next(name for name in reversed(path) if name in sources)
    return SettingRefused(name, sources[name], every_setting()[name].expected)
