"""Adds pages that stand elsewhere in the repository to the guide, with links of the guide's own."""

from __future__ import annotations

import posixpath
import re
from functools import partial
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {
    "ARCHITECTURE.md": "internals/architecture.md",
    "THREAT_MODEL.md": "internals/threat-model.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "CHANGELOG.md": "internals/changelog.md",
    "deploy/README.md": "operations/deploying.md",
    "deploy/CONFIGURATION.md": "reference/settings.md",
} | {
    f"deploy/runbooks/{path.name}": f"operations/runbooks/{path.name}"
    for path in (ROOT / "deploy/runbooks").glob("*.md")
}
PREFIX = "deploy/docs/pages/"
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand elsewhere."""
    for source, page in PAGES.items():
        moved = partial(_moved, source=source, page=page, config=config)
        text = LINK.sub(moved, (ROOT / source).read_text("utf-8"))
        files.append(File.generated(config, page, content=text))
    return files


def _moved(link: re.Match[str], *, source: str, page: str, config: MkDocsConfig) -> str:
    return f"]({_target(link[1], source, page, config)}{link[2] or ''})"


def _target(link: str, source: str, page: str, config: MkDocsConfig) -> str:
    """Where a link of a file leads, seen from its page: another page, or a file of the source."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    found = path.removeprefix(PREFIX) if path.startswith(PREFIX) else PAGES.get(path)
    if found is None:
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{source} links to {link}, which does not exist")
        return f"{config.repo_url}/blob/main/{path}"
    return posixpath.relpath(found, posixpath.dirname(page))
