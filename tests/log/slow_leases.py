"""A database that takes its time for each change of a host lease."""

from __future__ import annotations

from typing import Final

from tests.log.raw_sql import run_sql

ANSWER_S: Final = 1.2
"""Longer than a database of leases of the usual time may take."""


def answer_slowly(postgres_url: str) -> None:
    """From now on have each change of a lease take ``ANSWER_S``."""
    run_sql(
        postgres_url,
        "CREATE FUNCTION take_long() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN PERFORM pg_sleep({ANSWER_S}); RETURN NULL; END $$",
    )
    run_sql(
        postgres_url,
        "CREATE TRIGGER slow AFTER INSERT OR UPDATE ON host_leases"
        " FOR EACH ROW EXECUTE FUNCTION take_long()",
    )
