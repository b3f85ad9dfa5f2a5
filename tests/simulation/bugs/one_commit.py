"""A decision and its consequences in the wrong order."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from pybroker.transaction.snapshot_log import Done, SnapshotLog

_append = SnapshotLog.append


@contextmanager
def markers_ahead_of_their_decision() -> Iterator[None]:
    """Participants' appends go to the storage before the decision."""

    def append(
        self: SnapshotLog[Any],
        record: Any,
        done: Done,
        in_order: Callable[[], None] | None = None,
    ) -> None:
        if in_order is not None:
            in_order()
        _append(self, record, done)

    with patch.object(SnapshotLog, "append", append):
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "markers-ahead-of-their-decision": markers_ahead_of_their_decision,
}
