"""Units of systemd and examples of proxies: read by their own tools, in step with the settings."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import crossplane
import pytest
from crossplane.analyzer import DIRECTIVES

from http_edge.settings.reference import every_setting
from http_edge.settings.settings import Settings
from tests.deploy.manifests import DEPLOY, tool
from tests.edge.bare_edge import edge_with
from tests.ports import free_port
from tests.tidy.modules import ROOT

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
UPGRADE = DEPLOY / "runbooks/upgrade.md"
NGINX = DEPLOY / "proxy/nginx.conf"
CADDY = {"one node": DEPLOY / "proxy/Caddyfile", "cluster": DEPLOY / "compose/Caddyfile"}
DEFAULTS = Settings()
SECONDS_MAX = 60
UNAVAILABLE = {"type": "ERROR", "code": "TEMPORARILY_UNAVAILABLE"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_every_line_of_its_units(tmp_path: Path) -> None:
    copies = [tmp_path / unit.name for unit in UNITS]
    for unit, copy in zip(UNITS, copies, strict=True):
        # It also asks whether the programs exist.
        copy.write_text(re.sub(r"/opt/poste/bin/[\w-]+", "/bin/true", unit.read_text("utf-8")))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *map(str, copies)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_has_a_user_of_its_own_and_few_rights(unit: Path) -> None:
    lines = unit.read_text("utf-8").splitlines()
    assert {
        "User=poste",
        "NoNewPrivileges=true",
        "ProtectSystem=strict",
        "PrivateTmp=true",
        "CapabilityBoundingSet=",
        "UMask=0077",
    } <= set(lines)


def test_commands_run_as_the_service_does() -> None:
    unit = (DEPLOY / "systemd/poste.service").read_text("utf-8")
    command = (DEPLOY / "systemd/poste").read_text("utf-8")
    (program, config) = re.findall(r"(?m)^ExecStart=(\S+) serve --config (\S+)$", unit)[0]
    (secrets,) = re.findall(r"(?m)^EnvironmentFile=(.*)$", unit)
    (variable,) = re.findall(r"(?m)^Environment=(.*)$", unit)
    (user,) = re.findall(r"(?m)^User=(.*)$", unit)
    assert {
        f"--uid={user}",
        f"--property=EnvironmentFile={secrets}",
        f"--setenv=POSTE_CONFIG={config}",
        f"--setenv={variable}",
        program,
    } <= set(command.split())


def test_what_a_unit_needs_is_installed_as_its_first_lines_say() -> None:
    text = (DEPLOY / "systemd/poste.service").read_text("utf-8")
    commands = [line.split() for line in re.findall(r"(?m)^#   (.*)$", text)]
    installed = {words[-1]: words[-2] for words in commands if words[0] == "install"}
    assert all((ROOT / source).is_file() for source in installed.values())
    assert re.findall(r"(?m)^ExecStart=.* --config (\S+)$", text)[0] in installed
    assert installed["/usr/local/bin/poste"] == "deploy/systemd/poste"
    venv = next(words[-1] for words in commands if "venv" in words)
    assert re.findall(r"(?m)^ExecStart=(\S+)/bin/poste ", text) == [venv]
    (upgrade,) = set(re.findall(r"(?m)^\S+ install --constraint.*$", UPGRADE.read_text("utf-8")))
    assert upgrade.split() in commands


def _command_of_a_unit(folder: Path, *arguments: str, **programs: str) -> subprocess.Popen[str]:
    """The command for root, with these shell scripts in place of systemd's programs."""
    for name, does in {"runuser": "", **programs}.items():
        program = folder / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{does}\n", "utf-8")
        program.chmod(0o700)
    return subprocess.Popen(
        ["sh", str(DEPLOY / "systemd/poste"), *arguments],
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_an_argument_reaches_the_command_as_it_was_written(tmp_path: Path) -> None:
    """systemd puts the values of variables into the arguments of a unit."""
    label = "the $HOME of ${USER}, 5 $$\n"
    program = f"{sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' \"$@\""
    with _command_of_a_unit(tmp_path, "invite", "--label", label, systemd_run=program) as command:
        said, _ = command.communicate(timeout=SECONDS_MAX)
    assert json.loads(said)[-3:] == ["invite", "--label", label.replace("$", "$$")]


def test_a_signal_ends_the_command_that_systemd_runs(tmp_path: Path) -> None:
    running, stopped = tmp_path / "running", tmp_path / "stopped"
    for pipe in (running, stopped):
        os.mkfifo(pipe)
    with _command_of_a_unit(
        tmp_path,
        *("export", "--watch"),
        systemd_run=f'echo "$@" >{running}; read -r order <{stopped}; echo "$order"',
        systemctl=f'echo "$@" >{stopped}',
    ) as command:
        try:
            (unit,) = re.findall(r"--unit=(\S+)", running.read_text("utf-8"))
            command.terminate()
            said, _ = command.communicate(timeout=SECONDS_MAX)
        finally:
            command.kill()
    assert said == f"stop {unit}\n"
    assert command.returncode == 128 + signal.SIGTERM


def test_a_unit_is_started_again_as_long_as_its_database_is_away() -> None:
    for unit in UNITS:
        lines = unit.read_text("utf-8").splitlines()
        assert {"Restart=on-failure", "StartLimitIntervalSec=0"} <= set(lines), unit.name


def test_what_follows_the_start_of_a_unit_finds_a_mediator_that_serves() -> None:
    for unit in UNITS:
        lines = unit.read_text("utf-8").splitlines()
        assert {"Type=notify", "TimeoutStartSec=infinity"} <= set(lines), unit.name


def test_a_unit_waits_longer_than_a_mediator_takes_to_end() -> None:
    for unit in UNITS:
        if "poste serve" in unit.read_text("utf-8"):
            (seconds,) = re.findall(r"(?m)^TimeoutStopSec=(\d+)$", unit.read_text("utf-8"))
            assert int(seconds) >= DEFAULTS.limits.drain_s_max + 10, unit.name


def test_a_longer_drain_names_what_would_kill_the_mediator_before_its_end() -> None:
    """Beside the drain a pod first waits 5 s, and hosts and Ray end after it."""
    reason = every_setting()["limits.drain_s_max"].reason
    ((killed_s, up_to_s),) = re.findall(r"kill it (\d+) s after .* with more than (\d+) ", reason)
    for named, path, times in (
        ("TimeoutStopSec", "systemd/poste.service", 1),
        ("stop_grace_period", "compose/compose.yaml", 2),
        ("terminationGracePeriodSeconds", "helm/poste/values.yaml", 1),
    ):
        found = re.findall(rf"(?m)^ *{named}[=:] ?(\d+)s?$", (DEPLOY / path).read_text("utf-8"))
        assert found == [killed_s] * times, path
        assert named in reason
    assert int(up_to_s) + 5 + 10 <= int(killed_s)


@pytest.mark.parametrize("file", CADDY.values(), ids=CADDY)
def test_caddy_understands_its_file(file: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
        "POSTE_PUBLIC_URL": "https://mediator.example",
    }
    for arguments in (
        ["validate", "--adapter", "caddyfile", "--config", str(file)],
        ["fmt", "--diff", str(file)],
    ):
        checked = subprocess.run(
            [tool("caddy"), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
            env=environment,
        )
        assert checked.returncode == 0, checked.stderr


def test_caddy_says_in_the_protocols_form_that_no_node_answers(tmp_path: Path) -> None:
    port, closed = free_port(), free_port()
    text = CADDY["one node"].read_text("utf-8").replace("127.0.0.1:8080", f"127.0.0.1:{closed}")
    site = text.replace("mediator.example {", f"http://127.0.0.1:{port} {{")
    config = tmp_path / "Caddyfile"
    config.write_text("{\n\tadmin off\n}\n" + site, "utf-8")
    command = [tool("caddy"), "run", "--adapter", "caddyfile", "--config", str(config)]
    home = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=home) as caddy:
        try:
            assert caddy.stderr is not None
            assert any("serving initial configuration" in line for line in caddy.stderr)
            with closing(http.client.HTTPConnection("127.0.0.1", port, SECONDS_MAX)) as client:
                client.request("POST", "/", b"{}", {"Content-Type": "application/json"})
                answer = client.getresponse()
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                assert answer.headers["Content-Type"] == "application/json"
                assert json.loads(answer.read()) == UNAVAILABLE
        finally:
            caddy.terminate()


async def test_no_client_of_caddy_takes_a_node_from_others_by_a_request_that_fails(
    tmp_path: Path,
) -> None:
    config, port = tmp_path / "Caddyfile", free_port()
    text, nodes = re.subn(
        r"dynamic a {[^}]*}", "to 127.0.0.1:%d", CADDY["cluster"].read_text("utf-8")
    )
    assert nodes == 1
    environment = {
        **os.environ,
        "XDG_DATA_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
        "POSTE_PUBLIC_URL": f"http://127.0.0.1:{port}",
    }
    request = b"POST /brief HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n" % port
    async with edge_with(tmp_path) as edge, asyncio.timeout(SECONDS_MAX):
        config.write_text("{\n\tadmin off\n}\n" + text % edge.port, "utf-8")
        caddy = await asyncio.create_subprocess_exec(
            *(tool("caddy"), "run", "--adapter", "caddyfile", "--config", str(config)),
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
        try:
            assert caddy.stderr is not None
            await caddy.stderr.readuntil(b"serving initial configuration")
            statuses = []
            for rest in (
                b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                b"Content-Length: 1\r\n\r\nx",
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request + rest)
                statuses.append((await reader.read()).split()[1])
                writer.close()
            assert statuses == [b"503", b"200"]
        finally:
            caddy.terminate()
            await caddy.wait()


def test_nginx_says_in_the_protocols_form_that_no_node_answers() -> None:
    nginx = NGINX.read_text("utf-8")
    assert "error_page 502 504 = @unavailable;" in nginx  # "=": with the status of that answer
    (status, body) = re.findall(r"(?m)^ *return (\d+) '(.*)';$", nginx)[0]
    assert (status, json.loads(body)) == ("503", UNAVAILABLE)


def test_nginx_directives_are_known_and_where_they_belong(tmp_path: Path) -> None:
    whole = tmp_path / "nginx.conf"
    whole.write_text(f"events {{}}\nhttp {{\n    include {NGINX};\n}}\n", "utf-8")
    read = crossplane.parse(str(whole), combine=True)
    assert (read["status"], read["errors"]) == ("ok", [])
    assert _directives(read["config"][0]["parsed"]) <= set(DIRECTIVES)


def _directives(block: list[dict[str, Any]]) -> set[str]:
    """The directives of a block and of those in it; the lines of a map are values."""
    found = {each["directive"] for each in block}
    for each in block:
        if each["directive"] != "map":
            found |= _directives(each.get("block", []))
    return found


def _seconds(pattern: str, text: str) -> list[int]:
    return [int(found) for found in re.findall(pattern, text)]


def test_proxies_wait_longer_than_the_mediator_lets_them() -> None:
    answers_s = DEFAULTS.limits.host_call_s_max
    polls_s = DEFAULTS.didcomm.delay_s_max
    sockets_s = DEFAULTS.protocol.ping_interval_s * (DEFAULTS.protocol.pings_missed_max + 1)
    nginx = NGINX.read_text("utf-8")
    answering, waiting = _seconds(r"proxy_read_timeout (\d+)s", nginx)
    # A command may take two calls to hosts, each after a wait for its shard to move.
    assert answering > 2 * (answers_s + DEFAULTS.limits.move_wait_s_max)
    assert waiting > max(polls_s + answers_s, sockets_s)
    for file in CADDY.values():
        (header,) = _seconds(r"response_header_timeout (\d+)s", file.read_text("utf-8"))
        assert header > polls_s + answers_s


def test_proxies_close_idle_connections_first_and_take_bodies_of_our_size() -> None:
    mebibytes = DEFAULTS.limits.body_bytes_max // 2**20
    nginx = NGINX.read_text("utf-8")
    assert _seconds(r"keepalive_timeout (\d+)s", nginx)[0] < DEFAULTS.limits.keepalive_s
    # nginx looks at the length that a request names, and would refuse by a page in HTML.
    assert f"client_max_body_size {mebibytes + 1}m;" in nginx
    for file in CADDY.values():
        text = file.read_text("utf-8")
        assert _seconds(r"keepalive (\d+)s", text)[0] < DEFAULTS.limits.keepalive_s
        assert f"max_size {mebibytes}MiB" in text


def test_nginx_asks_another_node_when_one_refuses_or_its_machine_is_gone() -> None:
    (causes,) = re.findall(r"(?m)^ *proxy_next_upstream ([^;]+);", NGINX.read_text("utf-8"))
    # Not non_idempotent: a POST that a node may have got is not repeated.
    assert causes.split() == ["error", "timeout"]


def test_proxies_tell_the_clients_address_and_keep_the_operators_view_to_themselves() -> None:
    nginx = NGINX.read_text("utf-8")
    assert "proxy_set_header X-Forwarded-For $remote_addr;" in nginx
    for path in (
        "status",
        "metrics",
        "queues",
        "memory",
        "shards",
        "identities",
        "readyz",
        "livez",
    ):
        assert re.search(rf"location ~ \^/\([\w|]*\b{path}\b", nginx), path
        for file in CADDY.values():
            (private,) = re.findall(r"@private path (.*)", file.read_text("utf-8"))
            assert f"/{path}" in private.split(), path
