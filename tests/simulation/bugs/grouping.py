"""Groups of several coordinators gone wrong."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from pybroker.base.names import TxnId
from pybroker.transaction.coordinator import group_ends


@contextmanager
def group_half_decided() -> Iterator[None]:
    """The leader's decision does not name the members, so it forgets them in a crash."""

    def nobody(leader: int, members: Iterable[TxnId]) -> Iterator[Any]:
        return iter(())

    with patch.object(group_ends, "records_of_group", nobody):
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "group-half-decided": group_half_decided,
}
