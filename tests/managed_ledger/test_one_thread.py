"""The commit thread: its jobs, their order, and its end."""

import asyncio
import gc
import threading
import weakref

import pytest

from managed_ledger.storage.one_thread import OneThread, _work_off


def named(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_jobs_run_one_after_the_other_off_the_loop(run):
    async def scenario():
        loop, executor, order = asyncio.get_running_loop(), OneThread("in-order"), []
        jobs = [loop.run_in_executor(executor, order.append, n) for n in range(50)]
        await asyncio.gather(*jobs)
        name = await loop.run_in_executor(executor, lambda: threading.current_thread().name)
        executor.shutdown(wait=False)
        assert order == list(range(50))
        assert name == "in-order"

    run(scenario())


def test_a_process_that_ends_does_not_wait_for_a_disk_that_hangs(run):
    async def scenario():
        executor = OneThread("may-hang")
        await executor.submit(int, "7")
        assert [thread.daemon for thread in named("may-hang")] == [True]
        executor.shutdown(wait=False)

    run(scenario())


def test_what_a_job_returns_or_raises_comes_back(run):
    async def scenario():
        loop, executor = asyncio.get_running_loop(), OneThread("outcomes")
        assert await loop.run_in_executor(executor, int, "7") == 7
        with pytest.raises(ValueError, match="invalid literal"):
            await loop.run_in_executor(executor, int, "x")
        assert await loop.run_in_executor(executor, int, "8") == 8
        executor.shutdown(wait=False)

    run(scenario())


def test_work_submitted_before_its_end_is_done_and_none_is_taken_after(run):
    async def scenario():
        executor = OneThread("ends")
        done = executor.submit(int, "7")
        executor.shutdown(wait=False)
        assert await done == 7
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(int)
        for thread in named("ends"):
            thread.join()

    run(scenario())


def test_a_caller_that_no_longer_waits_disturbs_no_other(run):
    async def scenario():
        executor, hold = OneThread("cancelled"), threading.Event()
        first = executor.submit(hold.wait)
        first.cancel()
        second = executor.submit(int, "7")
        hold.set()
        assert await second == 7
        executor.shutdown(wait=False)

    run(scenario())


def test_the_thread_outlives_a_loop_that_was_closed_under_it():
    executor, hold, late = OneThread("closed-loop"), threading.Event(), []

    async def submit():
        executor.submit(hold.wait)
        executor.submit(late.append, 1)

    asyncio.run(submit())
    hold.set()
    executor.shutdown(wait=False)
    for thread in named("closed-loop"):
        thread.join()
    assert late == [1]


@pytest.mark.slow
def test_an_executor_that_is_forgotten_takes_its_thread_along(run):
    async def scenario():
        executor = OneThread("forgotten")
        await executor.submit(int)
        (thread,) = named("forgotten")
        gone = weakref.ref(executor)
        del executor
        gc.collect()
        assert gone() is None
        thread.join()

    run(scenario())


def test_a_job_is_not_kept_while_the_next_one_is_waited_for():
    class Large:
        pass

    class Jobs:
        """One job, then the end; `kept` is what still refers to the job while the thread waits."""

        def __init__(self, loop):
            large = Large()
            self.large, self.kept = weakref.ref(large), None
            self.first = [(loop, loop.create_future(), id, (large,))]

        def get(self):
            if self.first:
                return self.first.pop()
            self.kept = self.large()
            return None

    loop = asyncio.new_event_loop()
    jobs = Jobs(loop)
    _work_off(jobs)
    loop.close()
    assert jobs.kept is None
