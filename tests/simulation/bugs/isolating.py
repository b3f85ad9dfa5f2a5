"""Subscriptions that are read_uncommitted gone wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from pybroker.broker.dispatch.entry_reader import EntryReader
from pybroker.broker.dispatch.uncommitted_reader import UncommittedReader


@contextmanager
def uncommitted_reads_stick() -> Iterator[None]:
    """It reads further than others do, and that is all: what is aborted later was delivered."""
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
    """What was aborted is hidden from who waits for commits only."""
    with patch.object(UncommittedReader, "_settle_hidden", lambda *_: None):
        yield


BUGS = {
    "aborted-ones-come-late": aborted_ones_come_late,
    "uncommitted-reads-stick": uncommitted_reads_stick,
}
