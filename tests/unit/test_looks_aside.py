"""A look at a database that is away, while the mediator stops."""

from __future__ import annotations

import asyncio
import signal
import threading

from http_edge.server.serve import _aside

HANGS_S = 30.0


def test_the_end_of_a_mediator_waits_for_no_database_that_hangs() -> None:
    looks, answers = threading.Event(), threading.Event()
    threads = list[threading.Thread]()

    def look() -> bool:
        threads.append(threading.current_thread())
        looks.set()
        return answers.wait(HANGS_S)

    async def serve() -> None:
        looking = asyncio.create_task(_aside(look))
        await asyncio.to_thread(looks.wait, HANGS_S)
        looking.cancel()

    asyncio.run(serve())
    (thread,) = threads
    assert thread.is_alive()
    assert thread.daemon
    answers.set()
    thread.join(HANGS_S)
    assert not thread.is_alive()


async def test_a_look_takes_no_signal_to_stop_from_the_main_thread() -> None:
    blocked = await _aside(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    assert blocked >= {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


async def test_what_a_look_finds_is_returned() -> None:
    assert await _aside(lambda: "away") == "away"
