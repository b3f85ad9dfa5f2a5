"""Ended objects that stay in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from pybroker.broker.dispatch.entry_reader import EntryReader
from pybroker.broker.persistent.topic import Topic


@contextmanager
def deleted_topics_stay_in_memory() -> Iterator[None]:
    """A topic and its parts refer to each other forever."""
    with patch.object(Topic, "break_cycles", lambda self: None):
        yield


@contextmanager
def deleted_subscriptions_stay_in_memory() -> Iterator[None]:
    """A subscription and its reader refer to each other forever."""
    with patch.object(EntryReader, "break_cycles", lambda self: None):
        yield


BUGS = {
    "deleted-subscriptions-stay-in-memory": deleted_subscriptions_stay_in_memory,
    "deleted-topics-stay-in-memory": deleted_topics_stay_in_memory,
}
