"""SQL views of the exported log for operators' questions, in one text for Spark SQL and DuckDB.

``VIEWS`` are all of them: every ``View`` that these modules declare, each after those it reads.
"""

from __future__ import annotations

from typing import Final

from projections.views import identities, messages, pickup, refusals
from projections.views.view import View

VIEWS: Final = tuple(
    value
    for module in (messages, pickup, identities, refusals)
    for value in vars(module).values()
    if isinstance(value, View)
)
