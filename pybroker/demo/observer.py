"""A live read-committed observer: it reads the ledger's topics while processes are killed.

Transactions commit one after the other, because each holds the source's cursor. So a topic's
visible messages are whole batches in the order of the markers. For each marker the observer reads
from `debits`, `credits` and `rejects` as many messages as the marker's span of `transfers` must
produce, and compares the ids. A partly visible batch, an aborted message, a duplicate, or a batch
without a marker makes the sets differ at once.
"""

import json
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pybroker.client import Message
from pybroker.demo.payments import (
    CREDITS,
    DEBITS,
    LEDGER_CONTROL,
    PARTITIONS,
    REJECTS,
    TRANSFERS,
    Transfer,
)
from pybroker.demo.topics import Tail, read_all
from pybroker.spark import Marker
from pybroker.spark.offsets import CursorName, Position

_READ_TIMEOUT_MS: Final = 500
# includes restarts of the broker
_BATCH_TIMEOUT_S: Final = 60.0
_OUTPUTS: Final = (DEBITS, CREDITS, REJECTS)


@dataclass(slots=True)
class Input:
    """The transfers of one partition, in order."""

    positions: list[Position] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)

    def within(self, after: Position, to: Position) -> Sequence[Transfer]:
        first = bisect_right(self.positions, after)
        return self.transfers[first : bisect_right(self.positions, to)]


def read_input(service_url: str) -> dict[str, Input]:
    inputs = {}
    for partition in (f"{TRANSFERS}-partition-{index}" for index in range(PARTITIONS)):
        source = inputs[partition] = Input()
        for message in read_all(service_url, [partition]):
            message_id = message.message_id()
            source.positions.append(Position(message_id.ledger_id(), message_id.entry_id()))
            transfer = Transfer.from_message(message.data(), message.event_timestamp())
            source.transfers.append(transfer)
    return inputs


class Observer(threading.Thread):
    def __init__(self, service_url: str, inputs: Mapping[str, Input]) -> None:
        super().__init__(daemon=True)
        self._inputs = inputs
        self._control = Tail(service_url, LEDGER_CONTROL)
        self._tails = {topic: Tail(service_url, topic) for topic in _OUTPUTS}
        self._unread: dict[str, deque[int]] = {topic: deque() for topic in _OUTPUTS}
        self._reached: dict[CursorName, Position] = {}
        self._finish = threading.Event()
        self.markers: list[Marker] = []
        self.violations: list[str] = []
        self.transfers_seen = 0

    def run(self) -> None:
        while not (self._finish.is_set() and self._control.is_at_end()):
            for message in self._control.read(_READ_TIMEOUT_MS):
                marker = Marker.from_bytes(message.data())
                if not marker.is_opening:
                    self._check(marker)

    def finish(self, timeout_s: float) -> None:
        """Returns when everything visible has been checked. Reaching the time limit counts as a
        violation.
        """
        self._finish.set()
        self.join(timeout_s)
        if self.is_alive():
            self.violations.append(f"the observer did not finish within {timeout_s:.0f} s")
        for topic, tail in self._tails.items():
            surplus = len(self._unread[topic]) + len(tail.read(_READ_TIMEOUT_MS))
            if surplus:
                self.violations.append(f"{surplus} messages in {topic} that no marker accounts for")

    def _check(self, marker: Marker) -> None:
        self._check_contiguity(marker)
        transfers = [
            transfer
            for name, span in marker.progress.items()
            for transfer in self._inputs[name.topic].within(span.after, span.to)
        ]
        good = {transfer.id for transfer in transfers if transfer.is_good}
        bad = {transfer.id for transfer in transfers if not transfer.is_good}
        for topic, expected in ((DEBITS, good), (CREDITS, good), (REJECTS, bad)):
            seen = self._next_ids(topic, len(expected))
            if len(seen) != len(expected) or set(seen) != expected:
                self.violations.append(
                    f"batch {marker.batch_id} of {marker.query_id}: {topic} showed {len(seen)} ids "
                    f"({len(set(seen) & expected)} of the {len(expected)} expected)"
                )
        self.transfers_seen += len(transfers)
        self.markers.append(marker)

    def _check_contiguity(self, marker: Marker) -> None:
        """Checks that each span begins where the last one ended, without a message between them."""
        for name, span in marker.progress.items():
            reached = self._reached.get(name)
            source = self._inputs[name.topic]
            between = (
                source.within(min(reached, span.after), max(reached, span.after))
                if reached is not None
                else source.within(Position(-1, -1), span.after)
            )
            if between:
                self.violations.append(
                    f"batch {marker.batch_id} of {marker.query_id} begins at {span.after} of "
                    f"{name.topic}, {len(between)} transfers away from the end before"
                )
            self._reached[name] = span.to

    def _next_ids(self, topic: str, count: int) -> list[int]:
        unread = self._unread[topic]
        give_up_at = time.monotonic() + _BATCH_TIMEOUT_S
        while len(unread) < count and time.monotonic() < give_up_at:
            unread.extend(map(_id_of, self._tails[topic].read(_READ_TIMEOUT_MS)))
        return [unread.popleft() for _ in range(min(count, len(unread)))]


def _id_of(message: Message) -> int:
    return int(json.loads(message.data())["id"])
