"""Where settings come from, in rising order: defaults, TOML file, environment, command line.

Nothing is guessed and nothing ignored: an unknown name, also an unknown ``POSTE_`` variable, and
a value that does not fit are refused by name. See ``http_edge.config_reference`` for the names.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from http_edge.config import Settings
from http_edge.config_reference import PREFIX, Setting, every_setting

CONFIG_VARIABLE: Final = "POSTE_CONFIG"
DEFAULT: Final = "default"
COMMAND_LINE: Final = "command line"

# Kubernetes and Docker describe a service named "poste" to the containers beside it.
_SERVICE_LINK: Final = re.compile(r"POSTE_(SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP)\w*)?)")
_BOOLEANS: Final = {
    **dict.fromkeys(("true", "1", "on", "yes"), True),
    **dict.fromkeys(("false", "0", "off", "no"), False),
}
_USER_PASSWORD: Final = re.compile(r"(://[^:/@?]*):.*@")
_QUERY_PASSWORD: Final = re.compile(r"(password=)[^&]*")

Given: TypeAlias = tuple[str, Any, str]
"""A setting's name, its value and its source."""


class SettingRefused(Exception):
    """A setting is unknown, does not fit, or its source cannot be read.

    Attributes:
        name: The setting, as ``section.field``, or what stands in its place.
        source: Where it was set: a file, a variable, the command line.
        expected: What would have fitted.
    """

    def __init__(self, name: str, source: str, expected: str) -> None:
        super().__init__(f"{name} from {source}: expected {expected}")
        self.name = name
        self.source = source
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and for each by name where its value came from."""

    settings: Settings
    sources: dict[str, str]


def load_settings(
    flags: Mapping[str, str], environ: Mapping[str, str], config_path: Path | None = None
) -> Loaded:
    """Read all sources once and check the whole.

    ``flags`` are texts by setting name. Without ``config_path`` the file is the one that
    ``POSTE_CONFIG`` names, if any. Paths become absolute, because the settings are
    handed to processes with other working directories.

    Raises:
        SettingRefused: a source cannot be read, names something unknown, or a value does not fit.
    """
    given = [*_from_environment(environ), *_from_flags(flags)]
    path = config_path or Path(environ.get(CONFIG_VARIABLE, ""))
    if path != Path():
        given = [*_from_file(path), *given]
    sources = dict.fromkeys(every_setting(), DEFAULT) | {name: source for name, _, source in given}
    settings = _validated({name: value for name, value, _ in given}, sources)
    paths = {"data_dir": settings.data_dir, "keys_file": settings.keys_file}
    absolute = {name: path and path.expanduser().absolute() for name, path in paths.items()}
    return Loaded(settings.model_copy(update=absolute), sources)


def shown(settings: Settings) -> dict[str, Any]:
    """Every value in force by name, fit to be shown: a password in an address is masked."""
    values = settings.model_dump(mode="json")
    log = " ".join(map(_masked, settings.log_dsns))
    values |= {"public_url": settings.url, "did": settings.mediator_did, "log": log}
    if settings.export.to is not None:
        values["export"]["to"] = _masked(settings.export.to)
    return {
        setting.name: (values[setting.section] if setting.section else values)[setting.field]
        for setting in every_setting().values()
    }


def _masked(address: str) -> str:
    return _QUERY_PASSWORD.sub(r"\1***", _USER_PASSWORD.sub(r"\1:***@", address))


def _from_file(path: Path) -> Iterator[Given]:
    source = str(path)
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingRefused("the file", source, f"readable TOML ({error})") from error
    sections = {setting.section for setting in every_setting().values()} - {""}
    for name, value in tables.items():
        if name in sections and not isinstance(value, dict):
            raise SettingRefused(name, source, f"a table [{name}]")
        fields = (
            {f"{name}.{field}": inner for field, inner in value.items()}
            if name in sections
            else {name: value}
        )
        for full_name, inner in fields.items():
            setting = _known(full_name, source)
            yield full_name, None if inner == "" and setting.may_be_unset else inner, source


def _from_environment(environ: Mapping[str, str]) -> Iterator[Given]:
    by_variable = {setting.variable: setting for setting in every_setting().values()}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if setting := by_variable.get(variable):
            yield setting.name, _typed(setting, text), variable
        elif not _SERVICE_LINK.fullmatch(variable):
            raise SettingRefused(variable, "the environment", _nearest(variable, by_variable))


def _from_flags(flags: Mapping[str, str]) -> Iterator[Given]:
    for name, text in flags.items():
        yield name, _typed(_known(name, COMMAND_LINE), text), COMMAND_LINE


def _known(name: str, source: str) -> Setting:
    """The setting of this name.

    Raises:
        SettingRefused: there is none.
    """
    if setting := every_setting().get(name):
        return setting
    raise SettingRefused(name, source, _nearest(name, every_setting()))


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"a known setting, perhaps {near[0]}" if near else "a known setting"


def _typed(setting: Setting, text: str) -> Any:
    """A text as the JSON value that the setting wants; as it is where it cannot be that.

    Validation then says what was expected, in the same words for every source.
    """
    if text == "" and setting.may_be_unset:
        return None
    kind = setting.kind["type"]
    if kind == "array":
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind == "boolean":
        return _BOOLEANS.get(text.lower(), text)
    if kind in {"integer", "number"}:
        with suppress(ValueError):
            return int(text)
    if kind == "number":
        with suppress(ValueError):
            return float(text)
    return text


def _validated(values: Mapping[str, Any], sources: Mapping[str, str]) -> Settings:
    """The whole tree from values by name.

    Raises:
        SettingRefused: one does not fit, or two contradict each other.
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
        times = error["ctx"].get("times", 1)
        if sources[smaller] == DEFAULT:
            least = smaller if times == 1 else f"{times} times {smaller}"
            return SettingRefused(larger, sources[larger], f"at least {least}")
        most = larger if times == 1 else f"{larger} divided by {times}"
        return SettingRefused(smaller, sources[smaller], f"at most {most}")
    path = list(accumulate(map(str, error["loc"]), "{}.{}".format))
    name = next(name for name in reversed(path) if name in sources)
    return SettingRefused(name, sources[name], every_setting()[name].expected)
