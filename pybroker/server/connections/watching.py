"""What a connection watches until it is closed: topic lists, and what the V5 SDK watches."""

from collections.abc import Callable
from typing import Protocol

from pybroker.base.runtime import Pace
from pybroker.security.authorization import Need, Target

May = Callable[[Need, Target], bool]


class Watching(Protocol):
    def end(self) -> None: ...

    async def end_unpermitted(self, may: May, pace: Pace) -> bool:
        """Ends what would not be admitted now; returns whether nothing is left."""
        ...
