"""The record that each transaction leaves on the control topic: its query, and what it read.

It is published in the transaction itself, so a visible marker means a committed batch. A query's
first marker, its opening, belongs to no batch: it is published without a transaction, before the
first batch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pybroker.base.names import TxnId
from pybroker.spark.offsets import CursorName, Position, Progress, Span
from pybroker.spark.work import Work

_OPENING: Final = -1
_NO_TRANSACTION: Final = TxnId(0, 0)

Places = Mapping[CursorName, Position]


@dataclass(frozen=True, slots=True)
class Marker:
    query_id: str
    batch_id: int
    txn_id: TxnId
    progress: Progress
    # See Work; empty in markers of earlier versions.
    sources: str = ""
    # The positions after which all input is kept in case this batch must be evaluated again, also
    # for cursors that earlier batches passed over.
    kept: Places = field(default_factory=dict)
    # See Work; empty in markers of earlier versions.
    files: str = ""

    @classmethod
    def opening(cls, query_id: str) -> Self:
        return cls(query_id, _OPENING, _NO_TRANSACTION, {})

    @classmethod
    def of(cls, work: Work, txn_id: TxnId, kept: Places | None = None) -> Self:
        batch = work.query_id, work.batch_id
        return cls(*batch, txn_id, work.progress, work.sources, kept or {}, work.files)

    @property
    def is_opening(self) -> bool:
        return self.batch_id == _OPENING

    def is_of(self, work: Work) -> bool:
        """Whether it belongs to that batch and the batch still reads the same input."""
        return (
            (self.query_id, self.batch_id) == (work.query_id, work.batch_id)
            and self.progress == work.progress
            and self.sources in ("", work.sources)
            and self.files in ("", work.files)
        )

    def to_bytes(self) -> bytes:
        fields = {
            "query_id": self.query_id,
            "batch_id": self.batch_id,
            "txn_id": list(self.txn_id),
            "starts": _nested({name: span.after for name, span in self.progress.items()}),
            "ends": _nested({name: span.to for name, span in self.progress.items()}),
            "sources": self.sources,
            "files": self.files,
            "kept": _nested(self.kept),
        }
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises ValueError, also for a missing field or one of a wrong type."""
        try:
            fields: dict[str, Any] = json.loads(data)
            starts, ends = _flat(fields["starts"]), _flat(fields["ends"])
            progress = {name: Span(starts[name], end) for name, end in ends.items()}
            return cls(
                fields["query_id"],
                int(fields["batch_id"]),
                TxnId(*fields["txn_id"]),
                progress,
                fields.get("sources", ""),
                _flat(fields.get("kept", {})),
                fields.get("files", ""),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"This is not a marker: {data[:200]!r}") from error


def _nested(places: Places) -> dict[str, dict[str, str]]:
    nested: dict[str, dict[str, str]] = {}
    for name, position in places.items():
        nested.setdefault(name.subscription, {})[name.topic] = str(position)
    return nested


def _flat(nested: Mapping[str, Mapping[str, str]]) -> dict[CursorName, Position]:
    return {
        CursorName(topic, subscription): Position.parse(text)
        for subscription, places in nested.items()
        for topic, text in places.items()
    }
