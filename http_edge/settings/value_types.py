"""The types of setting values, and the base class of all sections."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

KIB: Final = 1024
MIB: Final = 1024 * KIB
PORT_MAX: Final = 65_535
COUNT_MAX: Final = 10**15
"""The largest count or size that can be set. Answers and events state some of them, and the JSON of
clients is exact up to 2**53 - 1."""
DURATION_S_MIN: Final = 0.01
"""The least time-out, and the least period of anything that recurs: a loop that waits for next to
nothing takes a whole core, and a connection that may do so ends before it is used."""
Duration: TypeAlias = Annotated[float, Field(ge=DURATION_S_MIN)]
"""Seconds that pass before something ends or begins again."""

WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - named to be recognised, not bound


def split_listen(listen: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[IPv6]:port``.

    Raises:
        ValueError: the text has another form, the port is beyond 65535, or no host can have such a
            name.
    """
    host, _, port = listen.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    address = host[1:-1] if bracketed else host
    well_formed = address and bracketed == (":" in address) and re.fullmatch("[0-9]{1,5}", port)
    if not well_formed or int(port) > PORT_MAX:
        raise ValueError(listen)
    return _host(address), int(port)


def did_web(url: str) -> str:
    """The did:web of a public URL: host, port behind %3A, path parts behind colons."""
    parts = urlsplit(url)
    return ":".join(["did:web", quote(parts.netloc, safe=""), *parts.path.split("/")[1:]])


def _host(host: str) -> str:
    _ = host.encode("idna")  # raises for an empty label, or one of more than 63 characters
    return host


def _listen(listen: str) -> str:
    split_listen(listen)
    return listen


def _named(path: object) -> object:
    if path == "":
        raise ValueError(path)  # Path("") is the current directory
    return path


def _matching(pattern: str, expected: str) -> Any:
    """A constraint on a text; ``expected`` says in words what it permits."""
    return Field(pattern=pattern, json_schema_extra={"expected": expected})


Folder: TypeAlias = Annotated[
    Path,
    BeforeValidator(_named),
    Field(json_schema_extra={"expected": "the path of a directory"}),
]
Listen: TypeAlias = Annotated[
    str,
    AfterValidator(_listen),
    Field(json_schema_extra={"expected": "host:port, for example 127.0.0.1:8080 or [::1]:8080"}),
]


def _url(url: str) -> str:
    _ = urlsplit(url).port  # raises for one beyond 65535
    return url


Url: TypeAlias = Annotated[
    str,
    AfterValidator(_url),
    _matching(
        r"^https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~%/-]*)?$",
        "an http or https URL without user, query and fragment",
    ),
]
Did: TypeAlias = Annotated[
    str,
    _matching(
        r"^did:[a-z0-9]+:[A-Za-z0-9._:%-]*[A-Za-z0-9._%-]$",
        "a DID, for example did:web:mediator.example",
    ),
]
IdentityDid: TypeAlias = Annotated[
    str,
    _matching(
        # A client may write the base64 in its did:decentrl with "+", "/" and padding.
        r"^did:[a-z0-9]+:[A-Za-z0-9._:%+/=-]*[A-Za-z0-9._%+/=-]$",
        "a DID, for example did:web:mediator.example",
    ),
]


def _log_address(log: str) -> str:
    urls = [log] if log.startswith("sqlite:") else log.split()
    if len(set(urls)) < len(urls):
        raise ValueError(log)  # one database twice
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme == "sqlite" and parts.netloc:
            raise ValueError(log)  # sqlite://name/log.db: a host, where a directory was meant
    return log


def servers_of(url: str) -> int:
    """How many servers the URL of a database names, as ``PostgresConnections`` tries them."""
    parts = urlsplit(url)
    lists = [parts.netloc.rpartition("@")[2]]
    lists += [value for name, value in parse_qsl(parts.query) if name in {"host", "hostaddr"}]
    return 1 + max(each.count(",") for each in lists)


LogAddress: TypeAlias = Annotated[
    str,
    AfterValidator(_log_address),
    _matching(
        # Of a file there is only a path: no host, and nothing after ? or #.
        r"^(sqlite:(//)?/[^?#]+|postgres(ql)?://\S+( +postgres(ql)?://\S+)*)$",
        "sqlite:///absolute/path.db or postgresql://user@host/database, no database twice",
    ),
]
ExportAddress: TypeAlias = Annotated[
    str,
    _matching(
        r"^(/.*|[a-z][a-z0-9+.-]*://.+)$",
        "an absolute path or a URI, for example s3://bucket/folder?region=eu-west-1",
    ),
]
NodeAddress: TypeAlias = Annotated[
    str,
    AfterValidator(_host),
    _matching(r"^[^\[\]]+$", "an address of this machine, also of IPv6, without brackets; or auto"),
]
NodeName: TypeAlias = Annotated[
    str,
    _matching(
        r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$",
        "a host name in small letters, for example node-1",
    ),
]
WebHost: TypeAlias = Annotated[
    str,
    _matching(
        r"^[A-Za-z0-9.-]+(:[0-9]{1,5})?$", "a host, for example did.example or did.example:8443"
    ),
]
Origin: TypeAlias = Annotated[
    str,
    _matching(r"^(\*|https?://[^/\s]+)$", "* or one origin, for example https://app.example"),
]
AgentName: TypeAlias = Annotated[
    str,
    _matching(
        r"^(did:key:z6(Mk|LS)[1-9A-HJ-NP-Za-km-z]{44}|[1-9A-HJ-NP-Za-km-z]{43,44}"
        r"|did:peer:[234][A-Za-z0-9._:=-]{40,4080}|did:web(vh)?:[A-Za-z0-9._:%-]{1,245})$",
        "an Ed25519 key in base58, a did:key, did:peer, did:web or did:webvh",
    ),
]


class Section(BaseModel):
    """Base of all sections: immutable, and an unknown name is refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def at_most(section: Section, smaller: str, larger: str) -> None:
    """Refuse a section in which one setting exceeds another.

    Raises:
        PydanticCustomError: ``smaller`` exceeds ``larger``; its context names both.
    """
    if getattr(section, smaller) > getattr(section, larger):
        raise contradiction(smaller, larger)


def contradiction(smaller: str, larger: str, times: int = 1) -> PydanticCustomError:
    """The error of a section in which ``times`` one setting exceeds another; it names both."""
    names: dict[str, object] = {"smaller": smaller, "larger": larger, "times": times}
    return PydanticCustomError("contradiction", "{smaller} at most {larger}", names)


def unfit(name: str, expected: str) -> PydanticCustomError:
    """The error of a section in which ``name`` does not fit the others; says what would."""
    about: dict[str, object] = {"name": name, "expected": expected}
    return PydanticCustomError("unfit", "{name}: expected {expected}", about)
