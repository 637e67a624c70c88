"""What PySpark does for each expression besides making it: nothing."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

pytestmark = pytest.mark.spark
GIVEN_UP = "m"
"""Tells Java that an object is no longer used, whenever Python collects its garbage."""


def test_an_expression_is_made_by_calls_that_make_it_and_no_look_up(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = type(spark._jvm._gateway_client)
    send, sent = client.send_command, list[list[str]]()

    def noted(self: object, command: str, *more: object, **named: object) -> object:
        sent.append(command.split("\n"))
        return send(self, command, *more, **named)

    F.when(F.col("id").isNull(), F.lit(0))  # the first ones of a process read settings
    monkeypatch.setattr(client, "send_command", noted)
    F.when(F.col("id").isNull(), F.lit(1))
    called = [(kind, method) for kind, _, method, *_ in sent if kind != GIVEN_UP]
    assert called == [("c", "col"), ("c", "isNull"), ("c", "lit"), ("c", "when")]
