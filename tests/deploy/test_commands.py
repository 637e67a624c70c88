"""Every command that ``deploy/`` shows or runs exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
import pytest

from http_edge.cli.main import poste
from http_edge.cli.projections_program import SUMMARIES
from http_edge.settings.reference import PREFIX, every_setting
from http_edge.settings.sources import CONFIG_VARIABLE
from projections.program import projections
from tests.deploy.manifests import DEPLOY, EVERYTHING_ON, pod_templates, rendered, services
from tests.tidy.modules import ROOT

TEXTS: Final = sorted(
    path
    for pattern in ("**/*.md", "**/*.yaml", "**/*.service", "**/NOTES.txt", "**/*.env")
    for path in DEPLOY.glob(pattern)
)
_FENCED: Final = re.compile(r"(?ms)^```sh\n(.*?)^```$")
_INLINE: Final = re.compile(r"`(poste [^`\n]*)`")
_IN_COMMENT: Final = re.compile(r"(?m)^#   ((?:docker|helm|kubectl|poste) .*)$")
_EXEC: Final = re.compile(r"(?m)^ExecStart=(.*)$")
_FILE: Final = re.compile(r"[^\s=]+\.(json|txt)|FILE|OLD|NEW")
_KEY: Final = "z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
_FOR: Final = {"KEY": _KEY, "DID": f"did:key:{_KEY}"}
"""What stands for what a reader fills in."""
_ENDS: Final = {"|", "||", "&&", ";", ">", ">>", "<", "&"}


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file that are commands."""
    text = path.read_text("utf-8")
    match path.suffix:
        case ".md":
            blocks = "\n".join(_FENCED.findall(text)).replace("\\\n", " ")
            yield from blocks.splitlines()
            yield from _INLINE.findall(text)
        case ".service":
            yield from _EXEC.findall(text.replace("\\\n", " "))
        case ".txt":
            yield from (line for line in text.splitlines() if " poste " in line)
        case _:
            yield from _IN_COMMENT.findall(re.sub(r"\\\n#\s*", "", text))
            yield from _INLINE.findall(text)


def _commands(line: str) -> Iterator[list[str]]:
    """The uses of ``poste`` in a line of a shell: its arguments up to the end of the command."""
    words = shlex.split(line, comments=True)
    for at, word in enumerate(words):
        follows = words[at + 1 : at + 2]
        if word.rpartition("/")[2] == "poste" and follows and re.match(r"[a-z]", follows[0]):
            end = next((i for i, w in enumerate(words) if i > at and w in _ENDS), len(words))
            yield words[at + 1 : end]


def _argument_lists(found: Any) -> Iterator[list[str]]:
    """Every list of a manifest that is a command line of ``poste``."""
    match found:
        case ["poste", *arguments]:
            yield list(map(str, arguments))
        case dict():
            for value in found.values():
                yield from _argument_lists(value)
        case list():
            for value in found:
                yield from _argument_lists(value)
        case _:
            pass


def _manifests() -> list[Any]:
    return [services(), *rendered(EVERYTHING_ON)]


def _check(arguments: Sequence[str], *, shown: bool = False) -> None:
    """Fail unless ``poste`` understands these arguments; in a text a name alone is enough."""
    words = [str(ROOT / "README.md") if _FILE.fullmatch(word) else word for word in arguments]
    words = [_FOR.get(word, word) for word in words]
    command: click.Command = poste
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, arguments
        if command is poste and words[0] in SUMMARIES and words[0] in projections.commands:
            found = projections.commands[words[0]]
        command, words = found, words[1:]
    if not words and shown:
        return
    context = command.make_context(command.name, words)
    for assignment in context.params.get("assignments", ()):
        name = assignment.partition("=")[0]
        assert name in every_setting(), arguments


def test_paths_below_deploy_are_shown_as_from_the_root_of_the_repository() -> None:
    tops = {path.name for path in DEPLOY.iterdir() if path.is_dir()} - {"docs"}
    shown = {
        word
        for path in DEPLOY.glob("**/*.md")
        for line in _lines(path)
        if "kubectl" not in line  # of Kubernetes deploy/NAME is a Deployment
        for word in re.findall(r"[^\s'\"=]+", line)
        if {"deploy", *tops} & {word.partition("/")[0]} and "/" in word
    }
    assert "deploy/helm/poste" in shown
    assert [word for word in sorted(shown) if not (ROOT / word).exists()] == []


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_command_that_is_shown_is_understood_by_poste(path: Path) -> None:
    for line in _lines(path):
        for arguments in _commands(line):
            _check(arguments, shown=True)


def test_every_command_for_kubernetes_names_the_namespace_of_the_release() -> None:
    given = r"--namespace=(mediator|{{ \.Release\.Namespace }}) "
    for path in TEXTS:
        for line in _lines(path):
            for rest in re.findall(r"\bkubectl (?!create namespace|drain )(.*)", line):
                assert re.match(given, rest), f"{path.name}: {line}"


def test_the_export_gets_a_new_password_with_the_nodes() -> None:
    runbook = (DEPLOY / "runbooks/lost-key.md").read_text("utf-8")
    restarted = re.findall(r"rollout restart deploy/(\S+)", runbook)
    assert set(restarted) == {name for name, _ in pod_templates()}


def test_every_block_of_commands_is_marked_as_one() -> None:
    fenced = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")
    for path in TEXTS:
        for kind, block in fenced.findall(path.read_text("utf-8")):
            assert kind or not re.search(r"(?m)^poste [a-z]", block), f"{path.name}: {block}"


def test_no_command_that_is_shown_reads_a_file_that_only_root_may_read() -> None:
    saved = "/media/safe"
    backup = (DEPLOY / "runbooks/backup.md").read_text("utf-8")
    assert f"install -m 600 /var/lib/poste/mediator-keys.json {saved}" in backup
    for path in (DEPLOY / "runbooks").glob("*.md"):
        for line in _lines(path):
            for arguments in _commands(line):
                assert not any(word.startswith(saved) for word in arguments), line


def test_a_secret_that_root_makes_belongs_to_the_user_of_the_service_and_is_set(
    tmp_path: Path,
) -> None:
    """The commands change the file of settings that the unit starts with."""
    page = (DEPLOY / "docs/pages/operations/push.md").read_text("utf-8")
    secret = re.compile(r'(\w+_file) = "(\S+)"')
    blocks = [block for block in _FENCED.findall(page) if secret.search(block)]
    assert len(blocks) == 2
    for block in blocks:
        ((name, file),) = secret.findall(block)
        assert re.search(rf"(?m)^(install .*-o poste .*|chown poste:poste ){file}$", block)
        settings = tmp_path / "poste.toml"
        settings.write_bytes((DEPLOY / "poste.example.toml").read_bytes())
        (edit,) = re.findall(r"(?ms)^sed .*?/etc/poste/poste.toml$", block)
        edit = edit.replace("/etc/poste/poste.toml", str(settings))
        subprocess.run(["/bin/sh", "-c", edit], check=True)
        assert tomllib.loads(settings.read_text("utf-8"))["push"][name] == file


def test_no_file_of_a_runbook_depends_on_the_directory_in_which_root_is() -> None:
    """The shell writes into that directory, and ``poste`` looks in the one of its user."""
    file = re.compile(r"(?<!-)> *(\S+)|--known[ =](\S+)")
    for path in (DEPLOY / "runbooks").glob("*.md"):
        for line in "\n".join(_FENCED.findall(path.read_text("utf-8"))).splitlines():
            for written, read in file.findall(line):
                assert (written or read).startswith("/"), f"{path.name}: {line}"


def test_every_command_that_a_manifest_starts_is_understood() -> None:
    found = [arguments for manifest in _manifests() for arguments in _argument_lists(manifest)]
    assert len(found) >= 6
    for arguments in found:
        _check(arguments)


def test_every_variable_of_ours_is_a_setting() -> None:
    known = {setting.variable for setting in every_setting().values()} | {CONFIG_VARIABLE}
    known.add(PREFIX + "VERSION")  # of the image, for the compose file alone
    shown = {
        name
        for path in _texts()
        if path.suffix != ".toml"
        for name in re.findall(r"\bPOSTE_[A-Z][A-Z_]+\b", path.read_text("utf-8"))
    }
    # Kubernetes' own, which the chart keeps away.
    assert shown - known <= {"POSTE_PORT"}


def _texts() -> list[Path]:
    """Every file of ``deploy`` but what Python compiled of its examples."""
    return [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc"]


def _routes() -> set[str]:
    text = (ROOT / "http_edge/admin/health.py").read_text("utf-8")
    return set(re.findall(r'PlainRoute\("GET", "(/\w+)"', text))


def test_every_path_that_is_asked_for_health_is_served() -> None:
    routes = _routes()
    requested = {
        found
        for path in _texts()
        for found in re.findall(r"/(?:livez|readyz|healthz?)\b", path.read_text("utf-8"))
    }
    assert requested <= routes


def test_every_file_that_is_linked_exists() -> None:
    link = re.compile(r"\]\((?!https?:)([^)#]+)\)")
    # The pages of the guide have addresses of their own; its build refuses a link that fails.
    for path in (*DEPLOY.glob("*.md"), *DEPLOY.glob("runbooks/*.md"), DEPLOY / "client/README.md"):
        for target in link.findall(path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_every_runbook_is_in_the_list_of_runbooks() -> None:
    listed = (DEPLOY / "README.md").read_text("utf-8")
    for path in (DEPLOY / "runbooks").glob("*.md"):
        assert f"(runbooks/{path.name})" in listed
