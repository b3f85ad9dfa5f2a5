"""Wrong groups of several coordinators."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from unittest.mock import patch

from pybroker.base.errors import PulsarError
from pybroker.base.names import TxnId
from pybroker.cluster.transactions.groups import SharedGroups
from pybroker.transaction.coordinator.group_commits import group_ends


@contextmanager
def group_half_decided() -> Iterator[None]:
    """The leader's decision does not name the members, so a crash forgets them."""

    def nobody(leader: int, members: Iterable[TxnId]) -> Iterator[Any]:
        return iter(())

    with patch.object(group_ends, "records_of_group", nobody):
        yield


def members_are_told_once() -> AbstractContextManager[Any]:
    """A leader ends although a broker has not answered for its members. When they ask, it is
    unknown.
    """
    follow = SharedGroups.follow

    async def once(self: SharedGroups, leader: TxnId, members: Sequence[TxnId]) -> None:
        with suppress(PulsarError):
            await follow(self, leader, members)

    return patch.object(SharedGroups, "follow", once)


BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "group-half-decided": group_half_decided,
}
