"""Runs tasks of Spark, several at the same time; a failure or an interrupt ends all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import Final, TypeVar

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_T = TypeVar("_T")
_NUMBERS: Final = itertools.count(1)
_AT_ONCE: Final = 2
"""The tasks that run at the same time: one is planned while the other one runs."""


def results_of(spark: SparkSession, tasks: Sequence[Callable[[], _T]]) -> Generator[_T, None, None]:
    """Run tasks in threads; yield their results in order of completion.

    Once a task fails, or the caller closes this generator, no other task begins, and the jobs of
    those that run are cancelled. Other jobs of the same Spark go on.

    Args:
        spark: the session whose Spark the tasks use.
        tasks: called once each, in this order.

    Raises:
        Exception: whatever a task raises.
    """
    context, group = spark.sparkContext, f"poste {next(_NUMBERS)}"

    def run(task: Callable[[], _T]) -> _T:
        context.setJobGroup(group, "")
        return task()

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        try:
            for done in as_completed([threads.submit(run, task) for task in tasks]):
                yield done.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            with suppress(Py4JError):  # as where Java has ended
                # Also jobs that a task would start between this and its end.
                context._jsc.sc().cancelJobGroupAndFutureJobs(group)  # noqa: SLF001
            raise
