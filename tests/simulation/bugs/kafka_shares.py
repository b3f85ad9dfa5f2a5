"""Share groups of Kafka's that forget, and that take records away."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from pybroker.kafka.shares.share_consumer import ShareConsumer


@contextmanager
def kafka_acceptances_not_stored() -> Iterator[None]:
    """An acknowledgement is answered before it is durable."""

    async def stored(self: ShareConsumer) -> None:
        await asyncio.sleep(0)

    with patch.object(ShareConsumer, "stored", stored):
        yield


@contextmanager
def kafka_locks_run_out_early() -> Iterator[None]:
    """A member that works on a record loses it after a second."""

    def ends_s(self: ShareConsumer) -> float:
        return asyncio.get_running_loop().time() + 1.0

    with patch.object(ShareConsumer, "_lock_ends_s", property(ends_s)):
        yield


BUGS = {
    "kafka-acceptances-not-stored": kafka_acceptances_not_stored,
    "kafka-locks-run-out-early": kafka_locks_run_out_early,
}
