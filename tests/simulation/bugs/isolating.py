"""Wrong read_uncommitted subscriptions."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from pybroker.broker.dispatch.entry_reader import EntryReader
from pybroker.broker.dispatch.uncommitted_reader import UncommittedReader


@contextmanager
def uncommitted_reads_stick() -> Iterator[None]:
    """Only the read position is uncommitted: messages aborted after delivery stay delivered."""
    with patch.multiple(
        UncommittedReader,
        aborted=EntryReader.aborted,
        reread=EntryReader.reread,
        wants=EntryReader.wants,
        _settle_hidden=EntryReader._settle_hidden,
    ):
        yield


@contextmanager
def aborted_ones_come_late() -> Iterator[None]:
    """Aborted messages are hidden only from subscriptions that read committed ones."""
    with patch.object(UncommittedReader, "_settle_hidden", lambda *_: None):
        yield


BUGS = {
    "aborted-ones-come-late": aborted_ones_come_late,
    "uncommitted-reads-stick": uncommitted_reads_stick,
}
