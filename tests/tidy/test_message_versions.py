"""The seam of DIDComm's message versions: their spelling is known behind it and nowhere else."""

import ast

from tests.tidy.modules import ROOT, Module, modules

SEAM = "http_edge/didcomm/envelopes/"
TABLE = SEAM + "versions.py"
NOTIFICATION = "http_edge/didcomm/push/service.py"
"""A push notification is no message, and has a member of the same name (RFC 0699, RFC 0734)."""
OUTSIDE = [
    module
    for module in modules("http_edge/didcomm", "http_edge/server", "http_edge/admin")
    if not module.path.startswith(SEAM) and module.path != NOTIFICATION
]
VERSIONS = sorted(path.name for path in (ROOT / SEAM).iterdir() if (path / "version.py").exists())
SPELLINGS = ("@type", "@id", "~thread", "~transport", "~timing", "~please_ack", "~attach", "~sig")


def _texts(module: Module) -> list[str]:
    constants = (node for node in ast.walk(module.tree) if isinstance(node, ast.Constant))
    return [node.value for node in constants if isinstance(node.value, str)]


def test_no_member_of_a_message_version_is_spelled_outside_the_seam() -> None:
    for module in OUTSIDE:
        found = [text for text in _texts(module) if any(name in text for name in SPELLINGS)]
        assert found == [], module.path


def test_no_message_version_is_imported_outside_the_seam() -> None:
    versions = tuple(f"http_edge.didcomm.envelopes.{version}" for version in VERSIONS)
    for module in OUTSIDE:
        found = [name for name, _ in module.uses() if name.startswith(versions)]
        assert found == [], module.path


def test_the_table_alone_knows_all_message_versions() -> None:
    assert VERSIONS == ["v1", "v2"]
    for module in modules("http_edge/didcomm/envelopes"):
        if module.path == TABLE:
            continue
        for version in VERSIONS:
            if not module.path.startswith(f"{SEAM}{version}/"):
                name = f"http_edge.didcomm.envelopes.{version}"
                assert not [used for used, _ in module.uses() if used.startswith(name)], module.path
