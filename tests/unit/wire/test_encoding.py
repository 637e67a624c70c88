from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_edge.crypto.encoding import (
    ED25519_PREFIX,
    X25519_PREFIX,
    b64decode,
    b64encode,
    multibase_decode,
    multibase_encode,
)

keys = st.binary(min_size=32, max_size=32)
prefixes = st.sampled_from([ED25519_PREFIX, X25519_PREFIX])


@given(st.binary())
def test_every_form_of_base64_is_read_and_one_is_written(data: bytes) -> None:
    standard, url_safe = base64.b64encode(data), base64.urlsafe_b64encode(data)
    for form in (standard, url_safe, standard.rstrip(b"="), url_safe.rstrip(b"=")):
        assert b64decode(form.decode()) == data
    assert b64encode(data) == url_safe.rstrip(b"=").decode()


@pytest.mark.parametrize(
    "text",
    [
        "YQ=",
        "YQ===",
        "YWI==",
        "YWJj=",
        "====",
        "=",
        "Y=Q=",
        "YQ==YQ==",
        "Y",
        "YWJjZ",
        "YW Jj",
        "YWJj\n",
        "YWJj\x00",
        "YWJ.",
        "YWJ\N{LATIN SMALL LETTER E WITH ACUTE}",
        "\N{FULLWIDTH LATIN CAPITAL LETTER A}AAA",
        "YWJ\ud800",
    ],
)
def test_what_is_not_base64_is_refused_and_never_repaired(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        b64decode(text)


@given(prefixes, keys)
def test_a_key_survives_multibase(prefix: bytes, key: bytes) -> None:
    text = multibase_encode(prefix, key)
    assert multibase_decode(text, prefix) == key
    assert text.startswith("z6Mk" if prefix == ED25519_PREFIX else "z6LS")


@given(keys)
def test_a_key_of_another_kind_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="not a key of this kind"):
        multibase_decode(multibase_encode(X25519_PREFIX, key), ED25519_PREFIX)


@pytest.mark.parametrize("size", [0, 1, 30, 31, 33, 34, 64, 5000])
def test_a_key_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="not a"):
        multibase_decode(multibase_encode(ED25519_PREFIX, b"\xff" * size), ED25519_PREFIX)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1] + "0",
        lambda text: text[:-1] + "\n",
        lambda text: text[:-1] + "\N{LATIN SMALL LETTER E WITH ACUTE}",
        lambda text: text + " ",
        lambda text: "m" + text[1:],
        lambda text: text[1:],
        lambda _: "",
    ],
)
def test_what_is_not_base58btc_multibase_is_refused(change: object) -> None:
    assert callable(change)
    with pytest.raises(ValueError, match=r"."):
        multibase_decode(change(multibase_encode(ED25519_PREFIX, bytes(32))), ED25519_PREFIX)


def test_the_did_key_example_of_the_w3c_is_read() -> None:
    text = "z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
    expected = "2e6fcce36701dc791488e0d0b1745cc1e33a4c1c9fcc41c63bd343dbbe0970e6"
    assert multibase_decode(text, ED25519_PREFIX).hex() == expected
