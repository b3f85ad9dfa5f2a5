"""Ends that come into force in pieces, and others who do not wait for the last."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from pybroker.transaction.pending_acks.pending_ack import PendingAcks


@contextmanager
def rest_forgotten_by_an_unload() -> Iterator[None]:
    """What is left of a commit is not waited for when its records go: with a snapshot, as an
    unload makes one.
    """

    async def settled(self: PendingAcks) -> None:
        return None

    with patch.object(PendingAcks, "settled", settled):
        yield


BUGS = {"rest-of-a-commit-forgotten-by-an-unload": rest_forgotten_by_an_unload}
