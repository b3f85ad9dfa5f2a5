"""The transactions that a pipeline has open, by the start that began them.

Those of a killed pipeline would end by their timeouts. A run aborts them as soon as nothing else
happens, so that it takes seconds.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence

from pybroker.eos_check.asked import Asked
from pybroker.eos_check.connection_trace import Event, Txn
from pybroker.eos_check.topics import Topics


class LeftOpen:
    def __init__(self, topics: Topics, kafka: bool, note: Callable[[str, str], None]) -> None:
        """`kafka`: Kafka's requests do not say which transaction they are about; the broker does.
        `note` gets what happened, for the timeline.
        """
        self._topics = topics
        self._kafka = kafka
        self._note = note
        self._open: dict[Txn, int] = {}  # number of the pipeline's start
        self._starts_ms: list[float] = []  # of the pipeline, since the epoch
        self._live = Asked(topics.open_transactions)

    def __bool__(self) -> bool:
        return bool(self._open)

    def pipeline_starts(self) -> None:
        self._starts_ms.append(time.time() * 1000)

    def follow(self, event: Event, life: int) -> None:
        """`life` is the number of the pipeline's start."""
        if event.answer and not event.error and event.txn is not None:
            if event.what == "NEW_TXN":
                self._open[event.txn] = life
            elif event.what in ("COMMIT", "ABORT"):
                self._open.pop(event.txn, None)

    def abort_abandoned(self, life: int, moved_s: float) -> None:
        """Abort those of earlier starts. `moved_s` is the time of the last request."""
        if self._kafka:
            for txn, began_ms in self._live.answer(moved_s):
                self._open.setdefault(txn, bisect_right(self._starts_ms, began_ms))
        self._abort([txn for txn, began_in in self._open.items() if began_in < life])

    def abort_all(self) -> None:
        self._abort(list(self._open))

    def _abort(self, transactions: Sequence[Txn]) -> None:
        for txn in transactions:
            life = self._open.pop(txn, 0)
            if self._topics.abort(txn):
                self._note("TIMEOUT", f"transaction {txn[0]}:{txn[1]} of start {life} is aborted")
