"""PublishBudget: which connections are stopped, and when they resume."""

import asyncio

from pybroker.server.publishing.publish_budget import PublishBudget


def test_everybody_stopped_goes_on_at_half_the_limit() -> None:
    resumed: list[str] = []
    budget = PublishBudget(100)
    first, second = (lambda: resumed.append("first")), (lambda: resumed.append("second"))
    assert budget.take(100, first)
    assert not budget.take(10, first)
    assert not budget.take(10, second)
    budget.give_back(69)
    assert resumed == []
    budget.give_back(1)
    assert resumed == ["first", "second"]


def test_one_message_larger_than_the_limit_goes_through() -> None:
    resumed: list[int] = []
    budget = PublishBudget(100)
    assert not budget.take(1000, lambda: resumed.append(1))
    budget.give_back(1000)
    assert resumed == [1]


def test_who_is_forgotten_is_not_resumed() -> None:
    resumed: list[int] = []

    def resume() -> None:
        resumed.append(1)

    budget = PublishBudget(100)
    budget.take(101, resume)
    budget.forget(resume)
    budget.give_back(101)
    assert resumed == []


def test_unused_waits_for_the_last_byte() -> None:
    async def scenario() -> None:
        budget = PublishBudget(100)
        await budget.unused()
        budget.take(2, lambda: None)
        waiting = [asyncio.ensure_future(budget.unused()) for _ in range(2)]
        budget.give_back(1)
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        budget.give_back(1)
        await asyncio.gather(*waiting)

    asyncio.run(scenario())
