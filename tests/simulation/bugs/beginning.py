"""Where subscriptions that begin at the end of a topic go on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pybroker.broker.subscriptions import subscribing, subscription


@contextmanager
def begins_within_transactions() -> Iterator[None]:
    """The end is that of the log, as in Apache Pulsar, also behind a part of a transaction."""

    def after_seek(ledger: Any, position: Any, _: Any) -> Any:
        return min(position, ledger.last_confirmed.after)

    with (
        patch.object(subscribing, "begin_after", lambda topic, start, level: start),
        patch.object(subscription, "next_after_seek", after_seek),
    ):
        yield


BUGS = {"begins-within-transactions": begins_within_transactions}
