"""Requests that name a hundred thousand things: other work runs while they are looked at."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from pybroker.base.runtime import Pace
from pybroker.kafka.session import Request

_A_TURN: Final = 50

T = TypeVar("T")
# The topic, and what the request has of the partition: its index, or a structure.
AnswerPartition = Callable[[str, Any], Awaitable[dict[str, Any]]]


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, some dozens in each turn of the loop. Few of them cost no turn."""
    pace = Pace(_A_TURN)
    for each in items:
        yield each
        await pace.step()


async def answered_by_topic(
    request: Request, answer: AnswerPartition, topic: str = "name", partitions: str = "partitions"
) -> dict[str, Any]:
    """A response with an answer for each partition, by topic. `topic` and `partitions` are the
    fields of the request's topics.
    """
    return {
        "topics": [
            {
                topic: each[topic],
                "partitions": [await answer(each[topic], p) async for p in paced(each[partitions])],
            }
            async for each in paced(request["topics"])
        ]
    }
