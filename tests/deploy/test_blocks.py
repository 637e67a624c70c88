"""Blocks of commands of the guide and the runbooks that run as they stand there, in a shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable

from tests.deploy.manifests import DEPLOY
from tests.export.test_restore import Original
from tests.tidy.modules import ROOT

BLOCKS: Final = (
    ("docs/pages/guides/export.md", "poste export compact"),
    ("docs/pages/guides/export.md", "poste log archive"),
    ("docs/pages/guides/proofs.md", "poste audit message"),
    ("docs/pages/guides/proofs.md", "poste verify"),
    ("docs/pages/guides/proofs.md", "poste proof consistency"),
    ("docs/pages/operations/retention.md", "poste audit identity"),
    ("docs/pages/operations/retention.md", "poste log rebuild-read-models"),
    ("runbooks/backup.md", "poste log verify"),
)
"""The page of each block, and a command in it."""
PLACES: Final = {
    "/srv/poste/export": "out",
    "s3://bucket/poste": "out",
    "EXPORT": "out",
    "/var/lib/poste": "data",
    r"curl -sfo (\S+) https://mediator.example/log/head": r"cp out/tree/checkpoint \1",
}
"""What a reader fills in; the head of an export is the one that its mediator publishes."""
POSTE: Final = f"""#!/bin/sh
exec {sys.executable} -c 'from http_edge.cli.main import main; main()' "$@"
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(tmp_path_factory.mktemp("blocks"), acts=100)


@pytest.mark.parametrize(("page", "command"), BLOCKS, ids=[command for _, command in BLOCKS])
def test_a_block_of_commands_runs_as_it_stands_in_the_guide(
    original: Original, tmp_path: Path, page: str, command: str
) -> None:
    shutil.copytree(original.data_dir, tmp_path / "data")
    shutil.copytree(original.place, tmp_path / "out")
    for head in ("old.txt", "new.txt"):
        shutil.copy(original.place / "tree/checkpoint", tmp_path / head)
    table = DeltaTable(original.place / "events").to_pyarrow_table()
    sent = next(row for row in table.to_pylist() if row["type"] == "message-queued")
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```$", (DEPLOY / page).read_text("utf-8"))
    (block,) = (text for text in blocks if re.search(rf"(?m)^{command}\b", text))
    filled = {
        "KEY": original.key,
        " ID ": f" {sent['message_id']} ",
        r"did:key:\w+": sent["identity"],
        "postgresql://poste@db/poste": f"sqlite:{tmp_path}/data/log.db",
    }
    for text, meant in (PLACES | filled).items():
        block = re.sub(text, meant, block)
    program = tmp_path / "bin/poste"
    program.parent.mkdir()
    program.write_text(POSTE)
    program.chmod(0o700)
    path = f"{program.parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["sh", "-eu", "-c", block],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
