"""A consumer whose segments come and go.

A segment is *wanted* while the layout, or the controller of a group, says so. It is left when it is
not wanted any more, and when it is drained: a sealed segment that is in nobody's hands can be
deleted by the broker.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pybroker.base.errors import ConsumerBusy, TopicNotFound, TransactionConflict
from pybroker.client.connection.cluster import Cluster
from pybroker.client.connection.retry import not_final, retrying
from pybroker.client.consuming.acks import Place
from pybroker.client.consuming.consumer import Acknowledgeable, Consumer, listed
from pybroker.client.consuming.subscribing import SubscriptionSpec
from pybroker.client.consuming.topic_consumer import TopicConsumer
from pybroker.client.errors import PulsarException
from pybroker.client.scalable.producer import V5_CLIENT
from pybroker.client.scalable.segment_consumer import SegmentConsumer
from pybroker.client.scalable.watch import LayoutWatch

log = logging.getLogger("pybroker.client")


class SegmentsConsumer(Consumer):
    def __init__(self, cluster: Cluster, watch: LayoutWatch, spec: SubscriptionSpec) -> None:
        super().__init__(cluster, watch.topic, [], spec)
        self._layouts = watch
        watch.ended = self.queue.fail
        self._openings: dict[str, asyncio.Task[Exception | None]] = {}
        self._drained: set[str] = set()
        self._left: set[str] = set()
        self._busy: set[str] = set()  # another consumer still has these
        self._progress = asyncio.Event()

    # --- segments ---------------------------------------------------------------------------

    def _want(self, wanted: Mapping[str, SubscriptionSpec], patient: bool = True) -> None:
        """Opens these segments, and leaves the others. `patient`: for as long as it takes."""
        if self._closed:
            return  # a layout or an assignment that came meanwhile: nobody would close them
        for name in [name for name in self._parts if name not in wanted]:
            self._leave(name)
        self._drained.intersection_update(wanted)
        size = self._queue_size(max(1, len(wanted)))
        self.queue.half, self._part_capacity = max(1, size // 2), size
        for name, spec in wanted.items():
            if name not in self._parts and name not in self._drained:
                self._begin(name, spec, size, patient)
        self._capacity = size * max(1, len(self._parts))

    def _begin(self, name: str, spec: SubscriptionSpec, size: int, patient: bool) -> None:
        part = SegmentConsumer(self._cluster, name, spec, self.queue, size, self)
        self._parts = {**self._parts, name: part}  # Other threads may be reading it.
        self._left.discard(name)
        opening = self._open_in_peace(part) if patient else _opened(part)
        self._openings[name] = self._cluster.tasks.start(opening, f"open {name}")
        self._openings[name].add_done_callback(lambda _: self._progress.set())

    async def _open_in_peace(self, part: TopicConsumer) -> Exception | None:
        """Another consumer may still have it, or its broker be away."""

        def passes(error: Exception) -> bool:
            if isinstance(error, ConsumerBusy):
                self._busy.add(part.topic)
                self._progress.set()
            return not_final(error)

        what = f"Opening {part.topic}"
        try:
            await retrying(part.open, self._cluster.rng, passes=passes, timeout_s=None, what=what)
        except TopicNotFound:
            self._lose(part)
        except PulsarException as error:
            if self._parts.get(part.topic) is part:
                self.queue.fail(error)
            return error
        finally:
            self._busy.discard(part.topic)
        return None

    async def _all_open(self) -> None:
        """Except those that another consumer still has. Raises the first failure; a segment that is
        gone is none.
        """
        while self._are_opening:
            self._progress.clear()
            await self._progress.wait()
        for name, opening in list(self._openings.items()):
            if not opening.done() or opening.cancelled():
                continue
            error = opening.result()
            if isinstance(error, TopicNotFound):
                self._lose(self._parts[name])
            elif error is not None:
                raise error

    @property
    def _are_opening(self) -> bool:
        openings = self._openings.items()
        return any(not each.done() and name not in self._busy for name, each in openings)

    def _leave(self, name: str) -> None:
        part = self._parts[name]
        self._parts = {key: each for key, each in self._parts.items() if key != name}
        self.settle()  # what was acknowledged reaches the broker first
        self._left.add(name)
        opening = self._openings.pop(name)
        self._cluster.tasks.start(_closed(part, opening), f"close {name}")

    def drained(self, part: TopicConsumer) -> None:
        if self._parts.get(part.topic) is part:
            self._drained.add(part.topic)
            self._leave(part.topic)

    def gone(self, part: TopicConsumer) -> None:
        self._lose(part)

    def interrupted(self) -> None:
        """What was drained may be so no longer; for consumers whom nobody tells that."""

    def _lose(self, part: TopicConsumer) -> None:
        """It was pruned, or the whole topic was deleted."""
        if self._parts.get(part.topic) is part:
            self._leave(part.topic)
            self._layouts.look_again()

    # --- acknowledging ----------------------------------------------------------------------

    def _by_part(
        self, messages: Acknowledgeable | Iterable[Acknowledgeable]
    ) -> Iterable[tuple[TopicConsumer, list[Place]]]:
        """Without messages of segments that were left: they are acknowledged, or another
        consumer's.
        """
        there = [each for each in listed(messages) if not self._was_left(each)]
        return super()._by_part(there)

    def refuse_unknown(self, message: Acknowledgeable) -> None:
        if not self._was_left(message):
            super().refuse_unknown(message)

    def _receiver_of(self, message: Acknowledgeable) -> TopicConsumer:
        if self._was_left(message):
            raise TransactionConflict(
                f"{message} is acknowledged already, or was given to another consumer: its segment "
                "is no longer read here"
            )
        return super()._receiver_of(message)

    def _was_left(self, message: Acknowledgeable) -> bool:
        return message.topic_name() in self._left

    # --- closing ----------------------------------------------------------------------------

    async def close(self) -> None:
        if not self._closed:
            await self._layouts.close()
            for opening in self._openings.values():
                opening.cancel()
            await super().close()


async def _opened(part: TopicConsumer) -> Exception | None:
    try:
        await part.open()
    except Exception as error:
        return error
    return None


async def _closed(part: TopicConsumer, opening: "asyncio.Task[Any]") -> None:
    if not opening.done():
        opening.cancel()
        await asyncio.wait([opening])
    with suppress(PulsarException):
        await part.close()


def of_segments(spec: SubscriptionSpec, topic: str) -> SubscriptionSpec:
    """With the property by which brokers tell clients of the V5 SDK, on ordinary topics."""
    if topic.startswith("segment://"):
        return spec
    properties = {**(spec.options.properties or {}), **V5_CLIENT}
    return replace(spec, options=replace(spec.options, properties=properties))
