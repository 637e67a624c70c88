"""The release before this one, from the history of the repository."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Final

from tests.archives import extract

_FIRST: Final = "ce25891"
"""What counts as the previous release until there is a tag: the first with this node protocol."""
_PACKAGES: Final = ("actors", "eventstore", "http_edge")
_HERE: Final = Path(__file__).parents[2]


class NotThere(Exception):
    """The history is not there, or does not reach so far back; the message says which."""


def unpack(folder: Path) -> str:
    """Lay the packages of the previous release into a folder; what git calls it.

    Raises:
        NotThere: there is no history of it.
    """
    tag = _name()
    with tarfile.open(fileobj=io.BytesIO(_archived(tag, *_PACKAGES))) as archive:
        extract(archive, folder)
    return tag


def requirements() -> list[str]:
    """What the previous release depends on, as its own pyproject.toml says it.

    Raises:
        NotThere: there is no history of it.
    """
    with tarfile.open(fileobj=io.BytesIO(_archived(_name(), "pyproject.toml"))) as archive:
        packed = archive.extractfile("pyproject.toml")
        assert packed is not None
        listed: list[str] = tomllib.loads(packed.read().decode())["project"]["dependencies"]
    return listed


def _name() -> str:
    try:
        return _git("describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^").decode().strip()
    except subprocess.CalledProcessError:
        return _FIRST
    except OSError as error:
        raise NotThere("git is not there") from error


def _archived(tag: str, *paths: str) -> bytes:
    try:
        return _git("archive", tag, *paths)
    except subprocess.CalledProcessError as error:
        raise NotThere(f"{tag}: {error.stderr.decode().strip()}") from error


def _git(*arguments: str) -> bytes:
    return subprocess.run(
        ["git", "-C", str(_HERE), *arguments], check=True, capture_output=True
    ).stdout
