"""Signed notes, heads in them, and the texts of public keys."""

from __future__ import annotations

import base64
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from eventstore.log.events import BatchSealed
from eventstore.log.merkle import EMPTY_ROOT, leaf_hash
from eventstore.log.public_key import PublicKey, PublicKeyRefused, read_public_key
from eventstore.log.signed_note import (
    NOTE_BYTES_MAX,
    NoteRefused,
    is_key_name,
    read_note,
    sign_note,
    verified_text,
)
from eventstore.log.tree_head import (
    TreeHead,
    is_origin_of,
    origin_of,
    read_head,
    seal_leaf,
    sign_head,
    verified_head,
)
from http_edge.crypto import signatures
from http_edge.crypto.encoding import ED25519_PREFIX, multibase_encode
from tests.unit.wire.vectors import rows

SEED = bytes(range(32))
KEY = PublicKey(signatures.public_key(SEED))
SIGN = partial(signatures.sign, SEED)
ORIGIN = "did:web:mediator.test"
HEAD = TreeHead(ORIGIN, 20_852_163, bytes(range(32)))
NOTE = sign_head(HEAD, KEY, SIGN)

# From the documentation of golang.org/x/mod/sumdb/note, by which other tools test themselves, too.
PUBLISHED_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PUBLISHED_TEXT = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
)
PUBLISHED_NOTE = f"""{PUBLISHED_TEXT}
\u2014 PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=
""".encode()  # noqa: E501


def test_a_published_note_is_verified() -> None:
    key = read_public_key(PUBLISHED_KEY)
    assert verified_text(PUBLISHED_NOTE, "PeterNeumann", key) == PUBLISHED_TEXT
    assert key.verifier_key("PeterNeumann") == PUBLISHED_KEY


def test_a_head_is_a_note_of_three_lines() -> None:
    root = base64.b64encode(HEAD.root).decode()
    text, _, signature = NOTE.decode().partition("\n\n")
    assert text.split("\n") == [ORIGIN, "20852163", root]
    assert signature.startswith(f"\u2014 {ORIGIN} ")
    assert verified_head(NOTE, KEY) == read_head(NOTE) == HEAD


def test_no_bit_of_a_head_can_be_changed() -> None:
    for place in range(len(NOTE)):
        for bit in range(8):
            changed = bytearray(NOTE)
            changed[place] ^= 1 << bit
            with pytest.raises(NoteRefused):
                verified_head(bytes(changed), KEY)


def test_base64_beyond_ascii_is_refused() -> None:
    root = base64.b64encode(HEAD.root)
    signature = NOTE.rstrip().rpartition(b" ")[2]
    for part in (root, signature):
        with pytest.raises(NoteRefused):
            read_head(NOTE.replace(part, "\x80".encode() + part))


def test_signatures_of_others_are_passed_over_and_one_of_ours_that_is_wrong_is_not() -> None:
    witness = PublicKey(signatures.public_key(bytes(32)))
    text = read_note(NOTE).text
    signed = sign_note(text, "witness.test/one", witness, partial(signatures.sign, bytes(32)))
    line = signed.decode().rpartition("\n\n")[2]
    both = NOTE + line.encode()
    assert verified_head(both, KEY) == HEAD
    assert verified_text(both, "witness.test/one", witness) == text
    wrong = sign_note(text, ORIGIN, KEY, lambda _: bytes(64)).decode().rpartition("\n\n")[2]
    with pytest.raises(NoteRefused, match="does not match this text"):
        verified_head(NOTE + wrong.encode(), KEY)
    with pytest.raises(NoteRefused, match="not signed by"):
        verified_head(NOTE, witness)


@pytest.mark.parametrize(
    "line",
    ["\u2014 a+b AAAAAAA=\n", "\u2014 a AAAAAA==\n", "\u2014 a AAAAAAB=\n", "a AAAAAAA=\n", "\n"],
)
def test_a_note_with_a_malformed_line_beside_its_signature_is_refused(line: str) -> None:
    assert verified_head(NOTE + "\u2014 a AAAAAAA=\n".encode(), KEY) == HEAD
    for note in (NOTE + line.encode(), NOTE[:-1]):
        with pytest.raises(NoteRefused):
            verified_head(note, KEY)


def test_a_signed_text_that_notes_cannot_hold_is_refused() -> None:
    text = f"{read_note(NOTE).text}bell\a\n"
    signature = base64.b64encode(KEY.note_id(ORIGIN) + SIGN(text.encode())).decode()
    with pytest.raises(NoteRefused, match="not a text"):
        verified_head(f"{text}\n\u2014 {ORIGIN} {signature}\n".encode(), KEY)


def test_a_note_is_read_up_to_its_bound() -> None:
    extension = "x" * (NOTE_BYTES_MAX - len(NOTE) - 1)
    text = f"{read_note(NOTE).text}{extension}"
    assert verified_head(sign_note(f"{text}\n", ORIGIN, KEY, SIGN), KEY) == HEAD
    with pytest.raises(NoteRefused, match="longer than 65536 bytes"):
        verified_head(sign_note(f"{text}x\n", ORIGIN, KEY, SIGN), KEY)


def test_extension_lines_are_signed_and_read_over() -> None:
    text = f"{read_note(NOTE).text}an extension\n"
    extended = sign_note(text, ORIGIN, KEY, SIGN)
    assert verified_head(extended, KEY) == HEAD
    with pytest.raises(NoteRefused, match="on separate lines"):
        verified_head(sign_note(f"{read_note(NOTE).text}\nafter a gap\n", ORIGIN, KEY, SIGN), KEY)


@pytest.mark.parametrize(
    "text",
    [
        *("only\n", "origin\n1\n", "origin\n01\n{root}\n", "origin\n-1\n{root}\n"),
        *("origin\n1\n{root}=\n", "origin\n1\nAAAA\n", "\n1\n{root}\n", "origin\nten\n{root}\n"),
        *("origin\n1\n*\n", "origin\n123456789012345678901\n{root}\n"),
        f"origin\n1\n{'A' * 42}B=\n",  # 32 bytes, but canonical base64 of them ends with A=
    ],
)
def test_what_is_signed_and_no_head_is_refused(text: str) -> None:
    root = base64.b64encode(EMPTY_ROOT).decode()
    with pytest.raises(NoteRefused):
        verified_head(sign_note(text.format(root=root), "origin", KEY, SIGN), KEY)


@pytest.mark.parametrize("name", ["", "two words", "a+b", "tab\tbed", "non\u00a0breaking", "a\n"])
def test_a_key_cannot_have_a_name_that_notes_cannot_hold(name: str) -> None:
    assert not is_key_name(name)
    with pytest.raises(ValueError, match="name of a key"):
        sign_note("text\n", name, KEY, SIGN)


@pytest.mark.parametrize("text", ["no line", "bell\a\n"])
def test_a_text_that_notes_cannot_hold_is_not_signed(text: str) -> None:
    with pytest.raises(ValueError, match="the text of a note"):
        sign_note(text, ORIGIN, KEY, SIGN)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@example(b"text\n\n")
@example(b"\n\n\xe2\x80\x94 a AAAA\n")
@example(b"x" * 70_000)
@example("text\n\n\u2014 a AAAAAAB=\n".encode())
def test_whatever_else_is_refused(content: bytes) -> None:
    with pytest.raises(NoteRefused):
        verified_head(content, KEY)


def test_a_key_is_read_in_every_form_in_which_it_is_shown() -> None:
    multibase = multibase_encode(ED25519_PREFIX, KEY.raw)
    shown = (
        KEY.text,
        KEY.raw.hex(),
        multibase,
        f"did:key:{multibase}",
        KEY.verifier_key(ORIGIN),
        f" {KEY.text}\n",
    )
    assert {read_public_key(text) for text in shown} == {KEY}


@given(st.text(max_size=80))
@example(PUBLISHED_KEY.replace("c74f20a3", "c74f20a4"))
@example("PeterNeumann+c74f20a3+AhpcAQ==")
@example("did:key:z6LSbysY2xFMRpGMhb7tFTLMpeuPRaqaWM1yECx2AtzE3KCc")
@example("z")
@example("1" * 600)
def test_whatever_is_no_key_is_refused_and_said_what_one_is(text: str) -> None:
    with pytest.raises(PublicKeyRefused, match=r"base58 as in export\.json"):
        read_public_key(text)


def test_signatures_hold_or_not_as_those_of_clients() -> None:
    every = [*rows("wycheproof_ed25519.json"), *rows("speccheck_ed25519.json")]
    assert len(every) > 100
    for row in every:
        key, message, signature = (bytes.fromhex(row[name]) for name in _SIGNED)
        expected = signatures.verify(key, message, signature)
        assert PublicKey(key).verify(message, signature) == expected
    assert not PublicKey(b"").verify(b"", bytes(64))


_SIGNED = ("key", "message", "signature")
SEALED = BatchSealed(
    at_ms=1,
    command=b"",
    partition="shard-3",
    epoch=2,
    window_ms=3,
    nonces=b"",
    rows=0,
    previous=bytes(32),
    digest=bytes(range(32)),
)


def test_the_leaf_of_a_seal_is_what_the_guide_says() -> None:
    entry = b"\x01" + b"".join(number.to_bytes(8, "big") for number in (7, 5, 2))
    assert seal_leaf(7, 5, SEALED) == leaf_hash(entry + bytes(range(32)) + b"shard-3")


@pytest.mark.parametrize(
    ("position", "version", "digest_bytes"), [(-1, 1, 32), (1, 2**64, 32), (1, 1, 31), (1, 1, 33)]
)
def test_what_no_seal_can_be_has_no_leaf(position: int, version: int, digest_bytes: int) -> None:
    sealed = replace(SEALED, digest=bytes(digest_bytes))
    with pytest.raises(ValueError, match="no seal of ours"):
        seal_leaf(position, version, sealed)


def test_each_database_of_a_log_has_an_origin_of_its_own() -> None:
    assert origin_of(ORIGIN) == ORIGIN
    assert {origin_of(ORIGIN, number) for number in range(2)} == {
        f"{ORIGIN}/db-0",
        f"{ORIGIN}/db-1",
    }


@pytest.mark.parametrize("end", ["", "/db-0", "/db-12"])
def test_an_origin_is_that_of_one_mediator(end: str) -> None:
    assert is_origin_of(f"{ORIGIN}{end}", ORIGIN)
    assert not is_origin_of(f"{ORIGIN}.other{end}", ORIGIN)


@pytest.mark.parametrize("end", ["/", "/db-", "/db-01", "/db--1", "/db-1/", "/x", "/db-1\u0660"])
def test_an_origin_names_nothing_but_a_database(end: str) -> None:
    assert not is_origin_of(f"{ORIGIN}{end}", ORIGIN)
