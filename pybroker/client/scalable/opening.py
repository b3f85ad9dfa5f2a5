"""A member that opens as a whole, although its parts come and go."""

from collections.abc import Awaitable, Callable


class Opening:
    """Implements Part, for Cluster.open_all."""

    def __init__(self, topic: str, work: Callable[[], Awaitable[None]]) -> None:
        self.topic = topic
        self._work = work

    async def open(self) -> None:
        await self._work()

    async def close(self) -> None:
        """The member itself is closed."""
