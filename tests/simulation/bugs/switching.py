"""Deduplication that is on again believes what held before it went off."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from bugs.believing import nothing
from pybroker.broker import topic
from pybroker.broker.deduplication.deduplication import Deduplication
from pybroker.broker.deduplication.producer_sequence import ProducerSequence


@contextmanager
def ids_begun_anew_are_copies() -> Iterator[None]:
    """What was stored unchecked below a producer's highest id does not say where it stands."""
    with patch.object(ProducerSequence, "began_again", lambda *_: None):
        yield


@contextmanager
def resent_never_answered() -> Iterator[None]:
    """A transaction that ended while deduplication was off is waited for, for good."""
    with (
        patch.object(Deduplication, "_outcome_lost", lambda *_: None),
        patch.object(topic, "forget_sequence_ids", nothing),
    ):
        yield


BUGS = {
    "ids-begun-anew-are-copies": ids_begun_anew_are_copies,
    "resent-never-answered": resent_never_answered,
}
