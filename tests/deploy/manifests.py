"""The files of ``deploy/``, read as the tools that they are for would read them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import helm_python
import yaml
from compose_spec import PyCompose

from tests.tidy.modules import ROOT

DEPLOY: Final = ROOT / "deploy"
CHART: Final = DEPLOY / "helm/poste"
COMPOSE: Final = DEPLOY / "compose/compose.yaml"
RELEASE: Final = "mediator"
EVERYTHING_ON: Final[Mapping[str, Any]] = {
    "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": [{"name": "registry"}]},
    "export": {"to": "s3://bucket/export", "env": [{"name": "AWS_REGION", "value": "eu-west-1"}]},
    "tools": {"enabled": True},
    "ingress": {"enabled": True},
    "nodes": {
        "trustedProxies": ["10.0.0.0/8", "fd00::/8"],
        "settings": {"limits.sockets_max": "10000"},
        "nodeSelector": {"pool": "poste"},
        "tolerations": [{"key": "poste", "operator": "Exists"}],
        "annotations": {"team": "mail"},
    },
    "serviceAccount": {"annotations": {"cloud/role": "exporter"}},
    "service": {"annotations": {"cloud/internal": "true"}},
}
VARIABLES: Final = {
    "POSTE_PUBLIC_URL": "https://mediator.example",
    "POSTGRES_PASSWORD": "a password",
}
"""What the compose file demands of its user."""
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::[-?]([^}]*))?\}")


def tool(name: str) -> str:
    """The program of this name that came with a package."""
    return str(Path(sys.executable).with_name(name))


def rendered(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objects that the chart makes of these values, as Helm renders them."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(dict(values))
        texts = chart.render(dict(values), name=RELEASE, namespace="prod")
    return [
        found
        for path, text in texts.items()
        if path.endswith(".yaml")
        for found in yaml.safe_load_all(text)
        if found
    ]


@cache
def services() -> dict[str, Any]:
    """The services of the compose file after merges, their variables as they are written."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]
    return found


def compose(variables: Mapping[str, str]) -> PyCompose:
    """The compose file with these variables, refused unless it is of the specification."""
    text = interpolated(COMPOSE.read_text("utf-8"), variables)
    return PyCompose.from_json(json.dumps(yaml.safe_load(text)))


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """A text of the compose file with its variables: ``${NAME}``, with a default or a demand."""
    return _VARIABLE.sub(
        lambda found: variables.get(found[1], found[2] if ":-" in found[0] else ""), text
    )


def pod_templates(**values: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod that the chart asks for with everything on, and with these values."""
    for found in rendered({**EVERYTHING_ON, **values}):
        if found["kind"] == "Deployment":
            yield found["metadata"]["name"], found["spec"]["template"]


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every container of these pods."""
    for name, template in pod_templates():
        for container in template["spec"]["containers"]:
            yield f"{name}/{container['name']}", container
