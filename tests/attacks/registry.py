"""All attacks by name, family after family."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from tests.attacks import accounts, commands, connections, frames, unproven, wallets
from tests.attacks.attack import Attack

_FAMILIES: Final[tuple[ModuleType, ...]] = (
    commands,
    unproven,
    connections,
    frames,
    wallets,
    accounts,
)

ATTACKS: Final[dict[str, Attack]] = {
    attack.name: attack for family in _FAMILIES for attack in family.ATTACKS
}
