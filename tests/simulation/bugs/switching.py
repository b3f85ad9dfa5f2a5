"""Deduplication that is switched on again trusts its state from before."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from bugs.believing import nothing
from pybroker.broker.deduplication import snapshot
from pybroker.broker.deduplication.deduplication import Deduplication
from pybroker.broker.deduplication.producer_sequence import ProducerSequence


@contextmanager
def ids_begun_anew_are_copies() -> Iterator[None]:
    """Unchecked messages below a producer's highest id do not restart its sequence."""
    with patch.object(ProducerSequence, "began_again", lambda *_: None):
        yield


@contextmanager
def resent_never_answered() -> Iterator[None]:
    """A message waits forever for a transaction that ended while deduplication was off."""
    with (
        patch.object(Deduplication, "_outcome_lost", lambda *_: None),
        patch.object(snapshot, "forget", nothing),
    ):
        yield


BUGS = {
    "ids-begun-anew-are-copies": ids_begun_anew_are_copies,
    "resent-never-answered": resent_never_answered,
}
