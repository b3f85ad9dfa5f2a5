"""Futures that call back in the turn in which they are done."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
from virtual_loop import run_virtually

from managed_ledger.prompt import Prompt, fail, prompt, when_done


def in_a_loop(fact: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(fact)
    def run(*args: Any, **named: Any) -> None:
        run_virtually(fact(*args, **named))

    return run


@in_a_loop
async def test_a_callback_runs_within_the_call_that_sets_the_result() -> None:
    waiting, told = prompt(), list[int]()
    waiting.then(lambda done: told.append(done.result()))
    waiting.then(lambda done: told.append(done.result() + 1))
    waiting.set_result(1)
    assert told == [1, 2]


@in_a_loop
async def test_a_callback_runs_within_the_call_that_sets_the_error() -> None:
    waiting, told = prompt(), list[object]()
    waiting.then(lambda done: told.append(done.exception()))
    fail(waiting, error := ValueError("no"))
    assert told == [error]
    fail(waiting, ValueError("again"))  # changes nothing
    assert waiting.exception() is error


@in_a_loop
async def test_a_callback_of_what_is_done_runs_in_the_next_turn() -> None:
    waiting, told = prompt(), list[int]()
    waiting.set_result(1)
    waiting.then(lambda done: told.append(done.result()))
    assert told == []
    await asyncio.sleep(0)
    assert told == [1]


@in_a_loop
async def test_a_cancelled_one_tells_its_callbacks_once() -> None:
    waiting, told = prompt(), list[bool]()
    waiting.then(lambda done: told.append(done.cancelled()))
    waiting.cancel()
    waiting.cancel()
    assert told == [True]


@in_a_loop
async def test_a_failing_callback_stops_neither_the_others_nor_the_caller() -> None:
    waiting, told, reported = prompt(), list[int](), list[object]()
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.append(context["exception"])
    )

    def fails(done: Prompt[int]) -> None:
        raise ZeroDivisionError

    waiting.then(fails)
    waiting.then(lambda done: told.append(done.result()))
    waiting.set_result(1)
    assert told == [1]
    assert [type(each) for each in reported] == [ZeroDivisionError]


@pytest.mark.parametrize("is_prompt", [False, True])
@in_a_loop
async def test_when_done_takes_either_kind_and_both_can_be_awaited(is_prompt: bool) -> None:
    loop, told = asyncio.get_running_loop(), list[int]()
    waiting: asyncio.Future[int] = prompt() if is_prompt else loop.create_future()
    when_done(waiting, lambda done: told.append(done.result()))
    loop.call_soon(waiting.set_result, 1)
    assert await waiting == 1
    assert told == [1]
