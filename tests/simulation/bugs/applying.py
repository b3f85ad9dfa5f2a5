"""Ends that take effect in pieces, and code that does not wait for the last one."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from pybroker.transaction.pending_acks.pending_ack import PendingAcks


@contextmanager
def rest_forgotten_by_an_unload() -> Iterator[None]:
    """A snapshot drops a commit's records before the rest of the commit is in force, as at an
    unload.
    """

    async def settled(self: PendingAcks) -> None:
        return None

    with patch.object(PendingAcks, "settled", settled):
        yield


BUGS = {"rest-of-a-commit-forgotten-by-an-unload": rest_forgotten_by_an_unload}
