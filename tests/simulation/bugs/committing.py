"""Wrong decisions for several transactions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from pybroker.transaction.coordinator.log.transaction_log import TransactionLog


@contextmanager
def decided_one_by_one() -> Iterator[None]:
    """Transactions that commit together are logged one by one."""

    def append_together(self: TransactionLog, records: Sequence[Any], done: Any) -> None:
        first, *rest = records

        def written(error: Exception | None) -> None:
            if error is not None or not rest:
                done(error)
            else:
                self.append_together(rest, done)

        self.append(first, written)

    with patch.object(TransactionLog, "append_together", append_together):
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "decided-one-by-one": decided_one_by_one,
}
