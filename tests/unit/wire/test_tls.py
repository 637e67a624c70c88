from __future__ import annotations

import ssl

from http_edge.crypto.tls import trusted_by_this_machine


def test_no_stranger_chooses_the_numbers_of_a_key_agreement() -> None:
    """A handshake with DHE over 10,000 bits takes seconds, on the event loop."""
    usual = {suite["name"]: suite["kea"] for suite in ssl.create_default_context().get_ciphers()}
    offered = {suite["name"] for suite in trusted_by_this_machine().get_ciphers()}
    assert offered == {name for name, agreement in usual.items() if agreement != "kx-dhe"}
    assert offered < usual.keys()
    assert {"TLS_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"} <= offered
