"""The exports of all databases of one log: finds them, and checks that none is missing.

No export says how many there are. The shards of the log do: shard i is in database i modulo the
number of databases, and each shard has a seal since the mediator first served it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventstore.log.databases import databases_among, folder_name, folder_of_database
from eventstore.parquet.catalog import Catalog
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import HEAD, open_place
from eventstore.parquet.manifest import ExportHead

_SHARD: Final = "shard-{}"
"""The name of a shard in ``actors.core.partitioning``."""


def exports_in(target: str) -> list[str]:
    """The targets of the export at a path or URI, or else of the databases there, in order.

    The list is empty if there are none, and includes one that is missing between two others.

    Raises:
        ExportUnavailable: the place cannot be read now.
    """
    place = open_place(target)
    if place.read_if_there(HEAD) is not None:
        return [target]
    count = databases_among(place.folders())
    return [folder_of_database(target, number) for number in range(count)]


def check_one_log(catalogs: Sequence[Catalog]) -> None:
    """Refuse exports that are not those of all databases of one log, in their order.

    Raises:
        ExportDamaged: an export is missing, of another mediator, or in the place of another one.
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
