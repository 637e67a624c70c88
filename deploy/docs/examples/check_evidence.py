"""Check an export, and the heads, proofs and receipts of its mediator, without a line of Poste."""

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import base58
import pyarrow as pa
import pyarrow.parquet as pq
from sealed_rows import (
    Row,
    Tree,
    canonical,
    leaf_of,
    read_head,
    require,
    require_signed,
    root_by,
    sha256,
    statement,
    stream_of,
)

COLUMNS = ["position", "stream", "version", "type", "type_version", "state"]


class Export:
    """An export, checked from its first row to its last."""

    def __init__(self, folder: str, key: bytes) -> None:
        self.folder, self.key, self.tree = Path(folder), key, Tree()
        self.heads: dict[str, tuple[int, bytes]] = {}  # the newest seal of each partition
        self.ends: dict[bytes, int] = {}  # the last version of each stream
        self.rows: dict[int, tuple[bytes, str, int, bool]] = {}
        self.erased, self.nameless = set[bytes](), list[Row]()
        self.did = self.said("export.json", "export.json")["mediator_did"]
        reached, link = 0, ""
        for path, digest in sorted(self.manifests().items()):
            said = self.said("a manifest", path, digest)
            follows = (said["first"], said["previous"]) == (reached + 1, link)
            require(follows, path, f"it does not continue what ends at position {reached}")
            self.check_rows(path, said)
            reached, link = said["last"], said["stands_for"] or digest
        for row in self.nameless:
            known = row.stream in self.erased or self.erased.issuperset(row.gone)
            require(known, row.where, "a name is gone, and no row says that it was erased")
        self.check_head("tree/checkpoint", self.read("tree/checkpoint").decode())

    def read(self, path: str, digest: str = "") -> bytes:
        """Read a file, and compare its SHA-256 if that is known."""
        require((self.folder / path).is_file(), path, "it is missing")
        content = (self.folder / path).read_bytes()
        require(digest in ("", sha256(content).hex()), path, "its SHA-256 is not the signed one")
        return content

    def said(self, kind: str, path: str, digest: str = "") -> Any:
        """Read a signed statement of this kind."""
        return statement(self.key, kind, path, self.read(path, digest))

    def manifests(self) -> dict[str, str]:
        """The manifests that count in the newest version of the table, with their SHA-256."""
        commits = sorted(self.folder.glob("events/_delta_log/" + "[0-9]" * 20 + ".json"))
        path = str(commits[-1].relative_to(self.folder))
        (info,) = (
            action["commitInfo"]
            for action in map(json.loads, self.read(path).splitlines())
            if "commitInfo" in action
        )
        said = statement(self.key, "a commit", path, info["poste"].encode())
        end = self.said("end.json", "end.json")
        # An exporter that was killed leaves the mark of the version before.
        ends = {
            said["version"]: sha256(self.read(path)).hex(),
            said["version"] - 1: said["previous"],
        }
        is_end = ends.get(end["version"]) == end["commit"]
        require(is_end, "end.json", f"it names another newest commit than {path}")
        named: dict[str, str] = said["since"]
        spans = [tuple(map(int, one[10:].split(".")[0].split("-")[:2])) for one in named]
        summary = self.read(said["summary"], said["summary_sha256"]) if said["summary"] else b"[]"
        for one in json.loads(summary):
            first, last = one["first"], one["last"]
            if not any(span[0] <= first and last <= span[1] for span in spans):
                again = f"-r{one['rewritten']}" if one.get("rewritten") else ""
                suffix = f"-{one['digest']}" if "digest" in one else again
                named[f"manifests/{first:020}-{last:020}{suffix}.json"] = one["sha256"]
        return named

    def check_rows(self, path: str, said: Any) -> None:
        """Check the rows of a manifest; ``pruned`` ones are proven by its signature alone."""
        is_pruned, unsealed, position = "pruned" in said, list[Row](), 0
        for leaf in self.tiles(said["tree"]["size"]) if is_pruned else ():
            self.tree.append(leaf)
        files = [self.read(one["path"], one["sha256"]) for one in said["files"]]
        tables = [pq.read_table(pa.BufferReader(one), columns=COLUMNS) for one in files]
        for one in pa.concat_tables(tables).sort_by("position").to_pylist():
            topic = f"{one['type']}.{one['type_version']}"
            row = Row(one["position"], one["stream"], one["version"], topic, one["state"])
            last = self.ends.get(row.stream, 0)
            follows = row.version > last if is_pruned else row.version == last + 1
            require(follows, row.where, f"version {row.version} stands after {last}")
            self.ends[row.stream] = row.version
            at_ms = row.event["at_ms"]
            self.rows[row.position] = row.stream, row.kind, at_ms, row.has_content
            self.erased |= {row.stream} if row.kind == "identity-erased" else set()
            self.nameless += [row] if row.gone else []
            unsealed.append(row)
            position = row.position
            if row.kind == "batch-sealed":
                name = row.event["partition"]
                is_there = row.stream == stream_of("partition", name)
                require(is_there, row.where, "it is not in the stream of its partition")
                if not is_pruned:
                    self.tree.append(leaf_of(row, unsealed[:-1]))
                    _, digest = self.heads.get(name, (0, bytes(32)))
                    follows = row.event["previous"] == digest
                    require(follows, row.where, "it does not continue the seal before")
                self.heads[name], unsealed = (row.version, row.event["digest"]), []
        ends_so = (is_pruned or not unsealed) and position == said["last"]
        require(ends_so, path, "its rows do not end with a seal at its last position")
        heads = {name: [version, digest.hex()] for name, (version, digest) in self.heads.items()}
        named = {name: [one["version"], one["digest"]] for name, one in said["heads"].items()}
        require(heads == named, path, "it names other newest seals than its rows have")
        tree = {"size": self.tree.size, "root": self.tree.roots[self.tree.size].hex()}
        require(said["tree"] == tree, path, "it names another tree than the seals give")

    def tiles(self, size: int) -> Iterator[bytes]:
        """The leaf hashes of a tree of this size, from its tiles (C2SP tlog-tiles)."""
        for number in range((size + 255) // 256):
            digits, count = f"{number:09}", min(256, size - 256 * number)
            above = "".join(f"x{digits[i : i + 3]}/" for i in (0, 3) if int(digits[: i + 3]))
            path = f"tree/tile/0/{above}{digits[6:]}"
            is_full = (self.folder / path).is_file()
            content = self.read(path if is_full else f"{path}.p/{count}")
            yield from (content[i : i + 32] for i in range(0, 32 * count, 32))

    def check_head(self, where: str, note: str) -> tuple[int, bytes]:
        """Check that the export continues a signed head; return its size and root."""
        origin, size, root = read_head(self.key, where, note)
        require(origin == self.did, where, f"it is a head of {origin}")
        require(size <= self.tree.size, where, f"{size} seals, the export has {self.tree.size}")
        require(self.tree.roots[size] == root, where, "the export has other seals")
        return size, root

    def check_proof(self, where: str, content: bytes) -> None:
        """Check the proof of what happened to a message."""
        proof = json.loads(content)
        require(canonical(proof) + b"\n" == content, where, "it is not canonical JSON")
        size, root = self.check_head(where, proof["head"])
        message, identity = proof["message_id"], proof["identity"]
        is_erased, stream = identity.startswith("erased:"), stream_of("identity", identity)
        stream = bytes.fromhex(identity[7:]) if is_erased else stream
        life, places = list[str](), [one["position"] for one in proof["seals"]]
        require(places == sorted({*places}), where, "its seals are not in the order of the log")
        for one in proof["seals"]:
            seal, rows = proven(one), [*map(proven, one["rows"])]
            leaf = root_by(leaf_of(seal, rows), one["index"], size, one["inclusion"])
            require(leaf == root, where, f"the seal at {seal.where} is not in the tree")
            ids = {r: [r.event.get("message_id"), *r.event.get("message_ids", [])] for r in rows}
            found = [row for row, named in ids.items() if message in named]
            is_its_own = found and all(row.stream == stream for row in found)
            require(is_its_own, where, f"the rows of {seal.where} are not about this message")
            life += [row.kind for row in found]
        begins = [at for at, kind in enumerate(life) if kind == "message-queued"]
        require(begins == [0], where, "it does not begin with the message in the queue, once")

    def check_receipt(self, where: str, said: bytes, signature: bytes) -> None:
        """Check a receipt against the rows; pruned ones are no longer there."""
        require_signed(self.key, where, b"poste erasure receipt\n" + said, signature)
        one = json.loads(said)
        stream = bytes.fromhex(one["stream"])
        for name, kind in (("begun", "identity-erasure-begun"), ("ended", "identity-erased")):
            row = self.rows.get(one[name], (b"", "", 0, False))
            require(row[:3] == (stream, kind, one[f"{name}_at_ms"]), where, f"no such row: {name}")
        named = [p for first, last in one["positions"] for p in range(first, last + 1)]
        require(len(named) == sum(one["contents"].values()), where, "its numbers disagree")
        for position in named:  # a row that was pruned is no longer there
            found, kind, *_ = self.rows.get(position, (stream, ""))
            is_its_own = found == stream and kind in {"", *one["contents"]}
            require(is_its_own, where, f"position {position} has nothing of this identity")
        for position, (found, _, _, has_content) in self.rows.items():
            is_left = has_content and found == stream and position < one["begun"]
            require(not is_left, where, f"the content of position {position} is still there")


def proven(one: Any) -> Row:
    """A row, or a seal, of a proof."""
    stream = bytes.fromhex(one.get("stream", ""))
    topic = one.get("topic", "batch-sealed.1")
    return Row(
        one.get("position", 0), stream, one["version"], topic, base64.b64decode(one["state"])
    )


def main(folder: str, multibase: str, *files: str) -> None:
    """Check an export by the key that ``poste keys`` shows, and heads, proofs and receipts."""
    export = Export(folder, base58.b58decode(multibase[1:])[2:])
    for name in files:
        content = Path(name).read_bytes()
        first, _, rest = content.partition(b"\n")
        if not content.startswith(b"{"):
            export.check_head(name, content.decode())
        elif b'"format":"poste-message-proof/1"' in first:
            export.check_proof(name, content)
        else:
            export.check_receipt(name, first, bytes.fromhex(rest.decode()))
    print(f"{len(export.rows)} rows, {export.tree.size} seals, {len(files)} files: all as signed")


if __name__ == "__main__":
    if not sys.argv[2:]:
        sys.exit("python check_evidence.py EXPORT PUBLIC-KEY [HEAD | PROOF | RECEIPT]...")
    main(*sys.argv[1:])
