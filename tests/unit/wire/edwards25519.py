"""Textbook arithmetic on edwards25519, to make signatures that no honest signer makes.

Points are affine pairs. Decoding is as lenient as it can be: ``y`` may be p or more, and the sign
of ``x = 0`` may be set. Slow, and fine for a test: nothing secret comes near it.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Final, TypeAlias

Point: TypeAlias = tuple[int, int]
_Extended: TypeAlias = tuple[int, int, int, int]

P: Final = 2**255 - 19
L: Final = 2**252 + 27742317777372353535851937790883648493
D: Final = -121665 * pow(121666, -1, P) % P
IDENTITY: Final[Point] = (0, 1)
BASE: Final[Point] = (
    15112221349535400772501151409588531511454012693041857206046113283949847762202,
    46316835694926478169428394003475163141307993866256225615783033603165251855960,
)

LOW_ORDER: Final = tuple(
    bytes.fromhex(text)
    for text in (
        "0000000000000000000000000000000000000000000000000000000000000000",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000080",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    )
)
"""All 14 encodings of the eight points of small order; six are not canonical (C2SP/CCTV)."""


def add(one: Point, two: Point) -> Point:
    return _affine(_add(_extended(one), _extended(two)))


def multiply(scalar: int, point: Point) -> Point:
    total = _extended(IDENTITY)
    for power in _doubled(point):
        if scalar & 1:
            total = _add(total, power)
        scalar >>= 1
    return _affine(total)


@cache
def _doubled(point: Point) -> list[_Extended]:
    """The point times 1, 2, 4 and so on up to 2^255, or as long as that is not the identity."""
    powers = [_extended(point)]
    while len(powers) < 256 and _affine(powers[-1]) != IDENTITY:
        powers.append(_add(powers[-1], powers[-1]))
    return powers


def _add(one: _Extended, two: _Extended) -> _Extended:
    """RFC 8032 section 5.1.4: the formula that holds for every pair of points."""
    (x1, y1, z1, t1), (x2, y2, z2, t2) = one, two
    a, b = (y1 - x1) * (y2 - x2) % P, (y1 + x1) * (y2 + x2) % P
    c, d = 2 * t1 * t2 * D % P, 2 * z1 * z2 % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def _extended(point: Point) -> _Extended:
    x, y = point
    return x, y, 1, x * y % P


def _affine(point: _Extended) -> Point:
    x, y, z, _ = point
    inverse = pow(z, -1, P)
    return x * inverse % P, y * inverse % P


def encode(point: Point) -> bytes:
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")


def decode(text: bytes) -> Point:
    number = int.from_bytes(text, "little")
    y = number % 2**255 % P
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    assert (x * x - square) % P == 0, "not a point"
    return (x if x & 1 == number >> 255 else (P - x) % P), y


def challenge(r: bytes, key: bytes, message: bytes) -> int:
    """``k`` of RFC 8032 section 5.1.7."""
    return int.from_bytes(hashlib.sha512(r + key + message).digest(), "little") % L


def equation_holds(key: bytes, message: bytes, signature: bytes) -> bool:
    """``[S]B = R + [k]A`` without a cofactor and without any other check."""
    r, s = signature[:32], int.from_bytes(signature[32:], "little")
    right = add(decode(r), multiply(challenge(r, key, message), decode(key)))
    return multiply(s, BASE) == right
