"""Deduplication that is on again believes what held before it went off."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from pybroker.broker.deduplication.producer_sequence import ProducerSequence


@contextmanager
def ids_begun_anew_are_copies() -> Iterator[None]:
    """What was stored unchecked below a producer's highest id does not say where it stands."""
    with patch.object(ProducerSequence, "began_again", lambda *_: None):
        yield


BUGS = {"ids-begun-anew-are-copies": ids_begun_anew_are_copies}
