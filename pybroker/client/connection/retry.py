"""When to retry, and how long to wait before."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pybroker.base import errors
from pybroker.client.errors import AlreadyClosed, ConnectError, Timeout

T = TypeVar("T")

FIRST_DELAY_S: Final = 0.1
# After a fail-over a client notices at most this much later that another broker serves its topic.
# Longer pauses could double the fail-over time, which is the dead broker's session timeout.
LAST_DELAY_S: Final = 1.0

# Transient errors. Everything else is a final answer.
PASSING: Final = (
    ConnectError,
    Timeout,
    errors.ServiceNotReady,
    errors.TooManyRequests,
    errors.MetadataError,
    errors.PersistenceError,
    errors.TransactionCoordinatorNotFound,
)
# Errors that end a producer or consumer that was already open. Any other error may come from its
# own old session, whose end the broker has not noticed yet, or from a topic that is being moved.
FINAL: Final = (
    AlreadyClosed,
    errors.ProducerFenced,
    errors.TopicTerminated,
    errors.TopicNotFound,
    errors.SubscriptionNotFound,
    errors.IncompatibleSchema,
    errors.InvalidTopicName,
    errors.AuthenticationError,
    errors.AuthorizationError,
    errors.UnsupportedVersionError,
    errors.NotAllowed,
)


class Backoff:
    """Doubling delays with jitter, so that clients do not all reconnect at once after a restart."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next_s = FIRST_DELAY_S

    def next_delay_s(self) -> float:
        delay_s = self._next_s * self._rng.uniform(0.8, 1.0)
        self._next_s = min(self._next_s * 2, LAST_DELAY_S)
        return delay_s


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    rng: random.Random,
    *,
    passes: Callable[[Exception], bool],
    timeout_s: float | None,
    what: str,
) -> T:
    """The first result of `attempt`; raises its last error if that is permanent or time is up."""
    backoff = Backoff(rng)
    last: Exception | None = None
    try:
        async with asyncio.timeout(timeout_s) as scope:
            while True:
                try:
                    return await attempt()
                except Exception as error:
                    if not passes(error):
                        raise
                    last = error
                await asyncio.sleep(backoff.next_delay_s())
    except TimeoutError as error:
        if not scope.expired() or isinstance(error, Timeout):
            raise
    raise last or Timeout(f"{what}: no answer within {timeout_s} s")


def passing(error: Exception) -> bool:
    return isinstance(error, PASSING)


def not_final(error: Exception) -> bool:
    """For operations that have worked before. Errors that are not PulsarErrors are bugs: final."""
    return isinstance(error, errors.PulsarError) and not isinstance(error, FINAL)
