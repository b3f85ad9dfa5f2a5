"""The record that each transaction leaves on the control topic: what it read, and who ran it.

It is published in the transaction itself, so a marker that can be read is a batch that counts.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from pybroker.names import TxnId
from pybroker.spark.offsets import CursorName, Position, Progress, Span


@dataclass(frozen=True, slots=True)
class Marker:
    query_id: str
    batch_id: int
    txn_id: TxnId
    progress: Progress

    def to_bytes(self) -> bytes:
        fields = {
            "query_id": self.query_id,
            "batch_id": self.batch_id,
            "txn_id": list(self.txn_id),
            "starts": self._positions(lambda span: span.after),
            "ends": self._positions(lambda span: span.to),
        }
        return json.dumps(fields).encode()

    def _positions(self, place: Callable[[Span], Position]) -> dict[str, dict[str, str]]:
        positions: dict[str, dict[str, str]] = {}
        for name, span in self.progress.items():
            positions.setdefault(name.subscription, {})[name.topic] = str(place(span))
        return positions

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        fields: dict[str, Any] = json.loads(data)
        progress = {
            CursorName(topic, subscription): Span(
                Position.parse(fields["starts"][subscription][topic]), Position.parse(end)
            )
            for subscription, ends in fields["ends"].items()
            for topic, end in ends.items()
        }
        txn_id = TxnId(*fields["txn_id"])
        return cls(fields["query_id"], fields["batch_id"], txn_id, progress)
