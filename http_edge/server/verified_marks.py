"""The signed marks in the data directory, which say what the mediator has verified of exports."""

from __future__ import annotations

import os
from typing import Final

from eventstore.log.public_key import PublicKey
from eventstore.parquet.files import open_place
from eventstore.parquet.manifest import Signer
from eventstore.parquet.verify.mark import VerifiedMarks
from http_edge.crypto.mediator_keys import load
from http_edge.server.data_dir import owner_hindered_by_root
from http_edge.settings.settings import Settings

_MARKS: Final = "verified"


def marks_of(settings: Settings, key: PublicKey | None, *, forgotten: bool) -> VerifiedMarks | None:
    """The marks in the data directory if ``key`` is its mediator's; None for another key or none.

    Also None if the directory cannot be written, or if this is root, whose files the mediator of
    another user could not use: then no verification is remembered.

    ``forgotten`` discards all earlier marks.
    """
    if key is None or not settings.keys_path.exists():
        return None
    if not os.access(settings.data_dir, os.W_OK, effective_ids=True):
        return None
    if owner_hindered_by_root(settings.keys_path) is not None:
        return None
    keys = load(settings.keys_path)
    if key.raw != keys.signing_public:
        return None
    signer = Signer(key.text, keys.sign)
    folder = open_place(str(settings.data_dir / _MARKS))
    return VerifiedMarks(folder, signer, are_forgotten=forgotten)
