"""Canonical JSON: the bytes that are signed and hashed (RFC 8785; DCTRL-0002 section 7)."""

from __future__ import annotations

from typing import Any

import orjson
import rfc8785

from http_edge.crypto.strict_json import INTEGER_MAX


class NotCanonical(ValueError):
    """The value has no canonical form: not JSON, not finite, too large or too deep."""


def canonical(value: object) -> bytes:
    """The canonical text of a JSON value in UTF-8 (RFC 8785).

    Raises:
        NotCanonical: there is none.
    """
    try:
        # RFC 8785 sorts keys by UTF-16 code units and writes numbers as ECMAScript does; orjson
        # sorts by UTF-8 bytes and writes floats its own way. For ASCII keys and no floats the
        # two agree, and orjson is more than ten times as fast.
        if _is_plain(value):
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        return rfc8785.dumps(value)  # type: ignore[arg-type] # it raises for what is not JSON
    except RecursionError:
        raise NotCanonical("nested too deep") from None
    except (TypeError, ValueError) as error:
        raise NotCanonical(str(error)) from None


def _is_plain(value: Any) -> bool:
    """Whether orjson and RFC 8785 write ``value`` alike; exact types only, no subclasses."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is dict:
        for key, member in value.items():
            if type(key) is not str or not key.isascii():
                return False
            if type(member) is not str and not _is_plain(member):
                return False
        return True
    if kind is list:
        return all(type(element) is str or _is_plain(element) for element in value)
    return kind is int and -INTEGER_MAX <= value <= INTEGER_MAX
