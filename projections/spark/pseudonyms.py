"""Pseudonyms in DataFrames (``eventstore.log.pseudonyms``), which Spark computes as expressions.

Anyone who sees the plan of a query (in the pages or event logs of a Spark cluster) can read the key
from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from eventstore.log.pseudonyms import DIGITS, NAMING, OURS, PREFIX, WITH_KINDS
from eventstore.log.streams import KINDS

_BLOCK_BYTES: Final = 64
_OUTER, _INNER = 0x5C, 0x36


def pseudonym(column: Column, key: bytes) -> Column:
    """The pseudonyms of a column of texts: ``p:`` and 32 digits; empty and null stay."""
    return F.when(column == "", column).otherwise(
        F.concat(F.lit(PREFIX), _digests(column.cast("binary"), key))
    )


def pseudonymised(
    frame: DataFrame, key: bytes, columns: Collection[str] = NAMING.keys()
) -> DataFrame:
    """Replace names by pseudonyms in those of ``columns`` that the rows have.

    Binary values become the 16 bytes of the pseudonym. The elements of arrays are replaced one by
    one; in an array of structs, the members that ``NAMING`` names.
    """
    replaced = {
        field.name: _replaced(F.col(field.name), field.dataType, key, field.name)
        for field in frame.schema
        if field.name in columns
    }
    return frame.withColumns(replaced)


def _replaced(column: Column, kind: DataType, key: bytes, name: str) -> Column:
    match kind:
        case StringType():
            return _of_kinds(column, key) if name in WITH_KINDS else pseudonym(column, key)
        case BinaryType():
            return F.unhex(_digests(column, key))
        case ArrayType(elementType=element):
            return F.transform(column, lambda each: _replaced(each, element, key, ""))
        case StructType():
            for field in kind:
                if field.name in NAMING:
                    member = _replaced(column[field.name], field.dataType, key, field.name)
                    column = column.withField(field.name, member)
            return column
        case _:
            raise TypeError(f"{name}: cannot pseudonymise {kind.simpleString()}")


def _of_kinds(column: Column, key: bytes) -> Column:
    is_ours, kind = F.lit(col=False), F.lit("")
    for prefix in OURS:
        is_ours |= column.startswith(prefix)
    for prefix in KINDS:
        kind = F.when(column.startswith(prefix), F.lit(prefix)).otherwise(kind)
    rest = F.substring(column, F.length(kind) + 1, F.length(column))
    return F.when(is_ours, column).otherwise(F.concat(kind, pseudonym(rest, key)))


def _digests(binary: Column, key: bytes) -> Column:
    """The first 128 bits of the HMAC of each value, as hex digits."""
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(
        _BLOCK_BYTES, b"\0"
    )
    inner, outer = (F.lit(bytes(b ^ pad for b in block)) for pad in (_INNER, _OUTER))
    inside = F.unhex(F.sha2(F.concat(inner, binary), 256))
    return F.substring(F.sha2(F.concat(outer, inside), 256), 1, DIGITS)
