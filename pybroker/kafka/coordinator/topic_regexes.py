"""Topics that match the regular expressions of KIP-848's members; looked for now and then."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from pybroker.broker.topic_lists.pattern import BadPattern, TopicPattern
from pybroker.kafka.errors import ErrorCode, KafkaError

FRESH_S: Final = 10.0
_MOST: Final = 1000
_MOST_TOPICS: Final = 100_000


class TopicRegexes:
    def __init__(self) -> None:
        self._found: dict[str, tuple[float, frozenset[str]]] = {}
        self._topics = 0  # at least as many as are kept

    async def matching(
        self, regex: str, topics: Callable[[], AsyncIterator[tuple[str, int]]]
    ) -> frozenset[str]:
        """The topics whose whole names match; not older than ten seconds. `topics` yields those
        that clients see, with their partitions. Raises KafkaError.
        """
        now_s = asyncio.get_running_loop().time()
        known = self._found.get(regex)
        if known is not None and known[0] + FRESH_S > now_s:
            return known[1]
        try:
            pattern = TopicPattern(regex)
        except BadPattern as error:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
        found = set()
        async for name, _ in topics():
            if pattern.matches(name):
                found.add(name)
        if len(self._found) >= _MOST or self._topics + len(found) > _MOST_TOPICS:
            self._found.clear()
            self._topics = 0
        self._topics += len(found)
        self._found[regex] = now_s, frozenset(found)
        return self._found[regex][1]
