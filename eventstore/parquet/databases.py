"""The exports of the databases of one log: which there are, and that they are all of them.

No export says how many there are. All shards of the log together say it: shard i is in database
i modulo their number, and each has a seal since the mediator first served it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventstore.log.databases import databases_among, folder_name, folder_of_database
from eventstore.parquet.catalog import Catalog
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import HEAD, FileMissing, open_place
from eventstore.parquet.manifest import ExportHead

_SHARD: Final = "shard-{}"
"""As ``actors.core.partitioning`` names them."""


def exports_in(target: str) -> list[str]:
    """The export at a path or URI, or else those of databases in it, in their order; or none.

    One that is missing between two others is named all the same.

    Raises:
        ExportUnavailable: the place cannot be read now.
    """
    place = open_place(target)
    try:
        place.read(HEAD)
    except FileMissing:
        count = databases_among(place.folders())
        return [folder_of_database(target, number) for number in range(count)]
    return [target]


def check_one_log(catalogs: Sequence[Catalog]) -> None:
    """Refuse exports that are not those of all databases of one log, in their order.

    Raises:
        ExportDamaged: one is missing, of another mediator, or in the place of another.
    """
    heads = [_head_of(number, catalog) for number, catalog in enumerate(catalogs)]
    ours = _owner(heads[0])
    for number, head in enumerate(heads):
        if _owner(head) != ours:
            why = f"it is of {_owner(head)}, and that before it of {ours}"
            raise ExportDamaged(f"{folder_name(number)}/{HEAD}", Damage.MISPLACED, why)
    count = len(catalogs)
    for shard in range(heads[0].shards):
        name, place = _SHARD.format(shard), shard % count
        holders = [number for number, catalog in enumerate(catalogs) if name in catalog.heads]
        if holders != [place]:
            where = " and ".join(map(folder_name, holders)) or "none"
            why = f"with {count} exports {name} belongs here, and {where} has it: one is missing,"
            why += " in the place of another, or has only begun"
            raise ExportDamaged(folder_name(place), Damage.MISPLACED, why)


def _head_of(number: int, catalog: Catalog) -> ExportHead:
    if catalog.head is None:
        why = "there are exports of other databases beside it"
        raise ExportDamaged(f"{folder_name(number)}/{HEAD}", Damage.MISSING, why)
    return catalog.head


def _owner(head: ExportHead) -> str:
    return f"{head.mediator_did} with {head.shards} shards and key {head.public_key}"
