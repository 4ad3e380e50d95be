"""A loop in a thread: it ends when it is told to, and its end by itself is never overlooked."""

import asyncio
import contextlib
import threading

import pytest

from kvik_operator.watch.threads import LoopThread, run_loop
from tests.support.waiting import PATIENCE


def test_it_runs_until_it_is_stopped_and_tidies_up() -> None:
    started, tidied, crashed = threading.Event(), threading.Event(), threading.Event()

    async def main() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            tidied.set()

    thread = LoopThread("test", main, crashed.set)
    thread.start()
    assert started.wait(PATIENCE)
    thread.stop()
    assert thread.join(PATIENCE)
    assert tidied.is_set()
    assert not crashed.is_set()


def test_a_crash_and_an_early_end_are_told() -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    async def ends() -> None:
        return None

    for main in (fails, ends):
        crashed = threading.Event()
        thread = LoopThread("test", main, crashed.set)
        thread.start()
        assert crashed.wait(PATIENCE)
        assert thread.join(PATIENCE)


def test_a_stop_before_the_start_is_a_stop() -> None:
    crashed = threading.Event()

    async def main() -> None:
        await asyncio.Event().wait()

    thread = LoopThread("test", main, crashed.set)
    thread.stop()
    thread.start()
    assert thread.join(PATIENCE)
    assert not crashed.is_set()


def test_a_second_stop_does_not_disturb_the_tidying_up() -> None:
    started, tidying, tidied = threading.Event(), threading.Event(), threading.Event()

    async def main() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            tidying.set()
            await asyncio.sleep(0.1)
            tidied.set()

    thread = LoopThread("test", main, lambda: None)
    thread.start()
    assert started.wait(PATIENCE)
    thread.stop()
    assert tidying.wait(PATIENCE)
    thread.stop()
    assert thread.join(PATIENCE)
    assert tidied.is_set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_task_that_takes_a_cancellation_for_a_pause_is_left_behind() -> None:
    """As kopf's watches do."""
    goes_on = True

    async def stubborn() -> None:
        while goes_on:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    async def main() -> None:
        left = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        assert not left.done()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_loop(main, patience=0.05)
    goes_on = False
