"""did:webvh: the two files that its host serves, and what it means that one is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.unknown_dids import AgentDids, methods
from http_edge.dids.document import Fetch
from http_edge.dids.fetched import FetchedDids
from tests.unit.wire.did_log import DidLog, approval_of, multikey
from tests.unit.wire.https_host import NAME, https_host

OWNER, WITNESS = (KeyPair.from_seed(bytes([number]) * 32) for number in (1, 2))
NOW_MS = 1_790_000_000_000
LOG, PROOFS = "/alice/did.jsonl", "/alice/did-witness.json"


@pytest.mark.parametrize(
    ("missing", "status", "known"),
    [(LOG, 404, None), (PROOFS, 404, None), (LOG, 503, Fetch.FAILED), (PROOFS, 503, Fetch.FAILED)],
)
async def test_without_its_log_or_the_proofs_that_this_requires_a_did_is_unknown(
    tmp_path: Path, missing: str, status: int, known: Fetch | None
) -> None:
    async with https_host(tmp_path) as host:
        log = DidLog(f"{NAME}%3A{host.port}:alice")
        witnesses = [{"id": f"did:key:{multikey(WITNESS)}"}]
        witness = {"threshold": 1, "witnesses": witnesses}
        log.add({}, OWNER, updateKeys=[multikey(OWNER)], witness=witness)
        proofs = [approval_of(log.entries[0]["versionId"], WITNESS)]

        async def there(request: web.Request) -> web.StreamResponse:
            is_log = request.path == LOG
            return web.Response(body=log.text) if is_log else web.json_response(proofs)

        async def without_one(request: web.Request) -> web.StreamResponse:
            if request.path == missing:
                return web.Response(status=status)
            return await there(request)

        def fetched() -> AgentDids:
            return FetchedDids(
                methods(lambda: NOW_MS),
                lookup=host.lookup,
                permitted=lambda address, _: address == "127.0.0.1",
                tls=host.trust,
            )

        host.answer = without_one
        dids = fetched()
        assert await dids.resolve(log.did) is None
        assert dids.known(log.did) is known
        host.answer = there
        assert await fetched().resolve(log.did) is not None
