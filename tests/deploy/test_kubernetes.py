"""The chart: rendered by Helm, held against the schemas of Kubernetes."""

from __future__ import annotations

from typing import Any

import helm_python
import kubernetes_validate
import pytest

from tests.deploy.manifests import (
    CHART,
    EVERYTHING_ON,
    RELEASE,
    containers,
    pod_templates,
    rendered,
)

OLDEST, NEWEST = "1.30.0", "1.37.0"
VALUES: list[dict[str, Any]] = [{}, dict(EVERYTHING_ON), {"metrics": {"enabled": False}}]
NAMES = ["defaults", "everything", "no metrics"]


def _of(kind: str, values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {found["metadata"]["name"]: found for found in rendered(values) if found["kind"] == kind}


def _node(values: dict[str, Any]) -> dict[str, Any]:
    """The container of a node."""
    (node,) = _of("Deployment", values)[RELEASE]["spec"]["template"]["spec"]["containers"]
    return dict(node)


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    report = helm_python.lint(CHART, strict=True)
    assert report["errors"] == []
    said = {message["error"] for message in report["messages"]}
    assert said <= {"icon is recommended"}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("values", VALUES, ids=NAMES)
def test_every_object_is_one_of_kubernetes(values: dict[str, Any], version: str) -> None:
    found = rendered(values)
    for each in found:
        kubernetes_validate.validate(each, version, strict=True)
    assert {each["kind"] for each in found} >= {
        "Deployment",
        "HorizontalPodAutoscaler",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
        "ServiceAccount",
    }


@pytest.mark.parametrize(
    "values",
    [
        {"publicUrl": "mediator.example"},
        {"log": {"url": "sqlite:///data/log.db"}},
        {"log": {"url": "postgresql://poste:secret@db/poste"}},
        {"log": {"shards": 0}},
        {"nodes": {"terminationGracePeriodSeconds": 5}},
        {"nodes": {"settings": {"limits.sockets_max": 10}}},
        {"nodes": {"trustedProxies": ["everybody"]}},
        {"image": {"digest": "latest"}},
        {"replicas": 3},
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(helm_python.HelmError, match=next(iter(values))):
        rendered(values)


def test_no_pod_is_root_talks_to_kubernetes_or_learns_of_services() -> None:
    for name, template in pod_templates():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name


def test_no_container_can_become_more_than_it_is() -> None:
    for name, container in containers():
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False, name
        assert security["readOnlyRootFilesystem"] is True, name
        assert security["capabilities"] == {"drop": ["ALL"]}, name
        assert container["resources"].keys() == {"requests", "limits"}, name


@pytest.mark.parametrize("watched", [True, False])
def test_a_pod_has_the_secrets_that_it_needs_and_no_other(*, watched: bool) -> None:
    given = {
        name: {
            item["key"]
            for volume in template["spec"]["volumes"]
            if "secret" in volume
            for item in volume["secret"]["items"]
        }
        for name, template in pod_templates(metrics={"enabled": watched})
    }
    of_all, token = {"mediator-keys.json", "postgres-ca.pem"}, {"operators-token"}
    assert given == {
        **dict.fromkeys([RELEASE, f"{RELEASE}-export"], of_all | (token if watched else set())),
        f"{RELEASE}-tools": of_all,
    }


@pytest.mark.parametrize(
    ("value", "variable"),
    [
        ("fcmCredentials", "POSTE_PUSH__FCM_CREDENTIALS_FILE"),
        ("webhookKey", "POSTE_PUSH__WEBHOOK_KEY_FILE"),
    ],
)
def test_nodes_alone_get_the_secret_of_push_notifications(value: str, variable: str) -> None:
    for name, template in pod_templates(push={value: "push-secret"}):
        spec = template["spec"]
        (mounted,) = [each["secret"]["items"] for each in spec["volumes"] if "secret" in each]
        variables = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
        is_node = name == RELEASE
        assert ({"key": "push-secret", "path": "push-secret"} in mounted) is is_node, name
        assert variables.get(variable) == ("/etc/poste/push-secret" if is_node else None), name


def test_a_node_is_asked_whether_it_lives_and_whether_it_is_ready() -> None:
    node = _node(dict(EVERYTHING_ON))
    paths = {
        probe: node[f"{probe}Probe"]["httpGet"]["path"]
        for probe in ("startup", "liveness", "readiness")
    }
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}


def test_a_first_start_that_makes_an_index_of_a_large_log_is_not_killed() -> None:
    probe = _node(dict(EVERYTHING_ON))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 3_600


def test_pods_end_in_the_time_that_they_have() -> None:
    deployment = _of("Deployment", {})[RELEASE]["spec"]["template"]["spec"]
    (node,) = deployment["containers"]
    sleep = node["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert deployment["terminationGracePeriodSeconds"] > sleep + 30


def test_one_node_at_a_time_is_taken_away_and_the_last_never_for_idleness() -> None:
    (budget,) = _of("PodDisruptionBudget", {}).values()
    assert budget["spec"]["maxUnavailable"] == 1
    (scaler,) = _of("HorizontalPodAutoscaler", {}).values()
    assert scaler["spec"]["minReplicas"] >= 2
    assert scaler["spec"]["scaleTargetRef"]["name"] == RELEASE
    down = scaler["spec"]["behavior"]["scaleDown"]
    assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 300}]


def test_pods_are_replaced_while_the_former_ones_work_on() -> None:
    deployments = _of("Deployment", dict(EVERYTHING_ON))
    assert deployments.keys() == {RELEASE, f"{RELEASE}-export", f"{RELEASE}-tools"}
    for name, deployment in deployments.items():
        strategy = deployment["spec"].get("strategy", {})
        assert strategy.get("type", "RollingUpdate") == "RollingUpdate", name
        assert strategy.get("rollingUpdate", {}).get("maxUnavailable", 0) == 0, name


def test_shards_suffice_for_the_most_nodes_there_may_be() -> None:
    (scaler,) = _of("HorizontalPodAutoscaler", {}).values()
    variables = {variable["name"]: variable.get("value") for variable in _node({})["env"]}
    assert int(str(variables["POSTE_SHARDS"])) >= 4 * scaler["spec"]["maxReplicas"]


def test_what_exports_can_be_watched_as_nodes_can() -> None:
    for name, template in pod_templates(tools={"enabled": False}):
        (container,) = template["spec"]["containers"]
        (port,) = [
            each["containerPort"] for each in container["ports"] if each["name"] == "metrics"
        ]
        assert any(f"0.0.0.0:{port}" in argument for argument in container["args"]), name
        assert "OPERATORS_TOKEN_FILE" in {variable["name"] for variable in container["env"]}, name


def test_commands_have_a_pod_with_the_log_and_the_store_while_no_node_runs() -> None:
    off = {name for name, _ in pod_templates(tools={"enabled": False})}
    (tools,) = [(name, template) for name, template in pod_templates() if name not in off]
    name, spec = tools[0], tools[1]["spec"]
    assert name == f"{RELEASE}-tools"
    (container,) = spec["containers"]
    assert container["args"] == ["sleep", "infinity"]
    exporter = _of("Deployment", dict(EVERYTHING_ON))[f"{RELEASE}-export"]["spec"]["template"]
    (other,) = exporter["spec"]["containers"]
    of_watching = [{"name": "OPERATORS_TOKEN_FILE", "value": "/etc/poste/operators-token"}]
    assert container["env"] == [each for each in other["env"] if each not in of_watching]
    policy = _of("NetworkPolicy", dict(EVERYTHING_ON))[name]["spec"]
    assert policy["ingress"] == []
    assert policy["egress"] == _of("NetworkPolicy", {})[f"{RELEASE}-export"]["spec"]["egress"]


def test_a_setting_reaches_the_node_as_it_was_written() -> None:
    label = 'Post: "Office" #1'
    values = {"nodes": {"settings": {"didcomm.label": label}}}
    assert _node(values)["args"][-1] == f"--set=didcomm.label={label}"


def test_the_ports_of_hosts_are_open_to_the_nodes_of_the_cluster_alone() -> None:
    policies = _of("NetworkPolicy", dict(EVERYTHING_ON))
    node = policies[f"{RELEASE}-node"]["spec"]
    among_nodes, *others = node["ingress"]
    assert among_nodes == {"from": [{"podSelector": node["podSelector"]}]}
    assert {port["port"] for rule in others for port in rule["ports"]} == {"http", "metrics"}
    (exporter,) = policies[f"{RELEASE}-export"]["spec"]["ingress"]
    assert [port["port"] for port in exporter["ports"]] == ["metrics"]
    unwatched = _of("NetworkPolicy", {"metrics": {"enabled": False}})
    assert unwatched[f"{RELEASE}-export"]["spec"]["ingress"] == []


def test_a_node_tells_the_others_the_address_of_its_pod() -> None:
    (node,) = _of("Deployment", {})[RELEASE]["spec"]["template"]["spec"]["containers"]
    given = {variable["name"]: variable.get("valueFrom") for variable in node["env"]}
    assert given["POSTE_NODE_ADDRESS"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_every_service_and_policy_selects_pods_that_there_are() -> None:
    labels = [template["metadata"]["labels"].items() for _, template in pod_templates()]
    for kind in ("Service", "PodDisruptionBudget"):
        for name, found in _of(kind, dict(EVERYTHING_ON)).items():
            selector = found["spec"]["selector"]
            wanted = selector.get("matchLabels", selector).items()
            assert any(wanted <= pod for pod in labels), name
