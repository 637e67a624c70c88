"""The reference of all settings, made from their fields: names, variables, valid values, reasons.

A setting has one name everywhere, ``section.field`` or ``field``. The file has it in the table of
its section; the environment as ``POSTE_SECTION__FIELD`` or ``POSTE_FIELD``; the command line as
``--set section.field=value``, and for some settings as a flag. In the environment and on the
command line commas separate the items of a list. An empty text unsets an optional setting. The
former name of a renamed setting still works.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Final

from http_edge.settings.settings import Section, Settings

PREFIX: Final = "POSTE_"
_NOUNS: Final = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "path": "a path",
    "ipvanynetwork": "a network, for example 10.0.0.0/8",
}
RETIRED: Final[Mapping[str, str]] = {
    "ray_address": "node_address in its place: each node has a Ray of its own now, and nodes have"
    " the log in PostgreSQL in common alone",
    "ray_node_ip": "node_address in its place: each node has a Ray of its own now",
    "limits.host_silent_s_max": "limits.host_lease_s, which is also the time for an answer now",
}
"""Settings of earlier releases that no longer exist, each with its replacement."""
_HEAD: Final = """\
# Every setting of poste with its default; remove the # before the ones to change.
# Start with: poste serve --config poste.toml
# Environment variables overrule this file, the command line overrules both.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name and the JSON schema of its field."""

    name: str
    schema: Mapping[str, Any]

    @property
    def section(self) -> str:
        """Its table in the file; empty for the top level."""
        return self.name.rpartition(".")[0]

    @property
    def field(self) -> str:
        """Its name within the section."""
        return self.name.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return variable_of(self.name)

    @property
    def former_name(self) -> str | None:
        """Its name in earlier releases, which still works; None if it was never renamed.

        A field declares it: ``Field(json_schema_extra={"former_name": "section.field"})``.
        """
        name: str | None = self.schema.get("former_name")
        return name

    @property
    def default(self) -> Any:
        """Its default as JSON; None is unset."""
        return self.schema["default"]

    @property
    def reason(self) -> str:
        """Its purpose and the reason for its default, on one line."""
        formerly = f" Formerly {self.former_name}." if self.former_name else ""
        return " ".join(self.schema["description"].split()) + formerly

    @property
    def kind(self) -> Mapping[str, Any]:
        """The JSON schema of its value when it is set."""
        kinds = self.schema.get("anyOf", [self.schema])
        chosen: Mapping[str, Any] = next(kind for kind in kinds if kind.get("type") != "null")
        return chosen

    @property
    def may_be_unset(self) -> bool:
        """Does an empty text unset it?"""
        return self.kind is not self.schema

    @property
    def expected(self) -> str:
        """The valid values, in words."""
        return in_words(self.kind) + (", or empty for none" if self.may_be_unset else "")


@cache
def every_setting() -> Mapping[str, Setting]:
    """All settings by name, in the order of their declaration."""
    return {setting.name: setting for setting in _settings(Settings)}


@cache
def former_names() -> Mapping[str, str]:
    """The present names of renamed settings, by their former names."""
    every = every_setting().values()
    return {setting.former_name: setting.name for setting in every if setting.former_name}


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.replace(".", "__").upper()


def _settings(model: type[Section], prefix: str = "") -> Iterator[Setting]:
    properties = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _settings(field.annotation, f"{name}.")
        else:
            yield Setting(prefix + name, properties[name])


def in_words(kind: Mapping[str, Any]) -> str:
    """The values that the JSON schema of a setting allows, in words."""
    match kind:
        case {"expected": str(expected)}:
            return expected
        case {"enum": choices}:
            return " or ".join(choices)
        case {"type": "array", "items": item}:
            return f"a list, written with commas, each {in_words(item)}"
        case _:
            noun = _NOUNS[kind.get("format", kind["type"])]
            return " ".join([noun, *_bounds(kind)])


def _bounds(kind: Mapping[str, Any]) -> Iterator[str]:
    match kind:
        case {"minimum": low, "maximum": high}:
            yield f"from {low:_} to {high:_}"
        case {"exclusiveMinimum": low, "maximum": high}:
            yield f"above {low:_} up to {high:_}"
        case {"minimum": low}:
            yield f"from {low:_}"
        case {"exclusiveMinimum": low}:
            yield f"above {low:_}"
        case _:
            pass


def toml_text(value: Any) -> str:
    """A value of a setting as TOML; the empty text if unset."""
    match value:
        case None:
            return '""'
        case bool():
            return str(value).lower()
        case int():
            return f"{value:_}"
        case float():
            return f"{value:g}"
        case list():
            return f"[{', '.join(map(toml_text, value))}]"
        case _:
            return json.dumps(value)


def toml_reference() -> str:
    """A configuration file with every setting at its default, commented out."""
    parts = [_HEAD.rstrip()]
    for section, settings in groupby(every_setting().values(), lambda setting: setting.section):
        if section:
            parts += ["", *_comment(_about(section)), f"[{section}]"]
        for setting in settings:
            parts += [
                "",
                *_comment(setting.reason),
                *_comment(f"({setting.expected}; {setting.variable})"),
                f"#{setting.field} = {toml_text(setting.default)}",
            ]
    return "\n".join(parts) + "\n"


def markdown_reference() -> str:
    """The reference as one Markdown table per section."""
    parts = ["# Settings"]
    for section, settings in groupby(every_setting().values(), lambda setting: setting.section):
        parts += [
            "",
            *([f"## {section}", "", _about(section), ""] if section else []),
            "| setting | default | fits | environment | why |",
            "|---|---|---|---|---|",
        ]
        parts += [
            f"| `{setting.name}` | {_cell(setting.default)} | {_escaped(setting.expected)} "
            f"| `{setting.variable}` | {_escaped(setting.reason)} |"
            for setting in settings
        ]
    return "\n".join(parts) + "\n"


def _about(section: str) -> str:
    model = Settings.model_fields[section].annotation
    assert model is not None
    return " ".join((model.__doc__ or "").split())


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 98, initial_indent="# ", subsequent_indent="# ")


def _cell(default: Any) -> str:
    return "" if default is None else f"`{toml_text(default)}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
