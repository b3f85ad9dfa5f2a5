"""--txn: what is done, in transactions; the same words for producing and for consuming."""

import argparse
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from pybroker.client import Client, Transaction
from pybroker.commands.messages.values import groups, positive

T = TypeVar("T")


def add_transactions(parser: argparse.ArgumentParser, what: str) -> None:
    group = parser.add_argument_group("transactions (ours)")
    group.add_argument(
        "--txn", action="store_true", help=f"{what} in one transaction: all, or none"
    )
    group.add_argument(
        "--txn-size", type=positive, metavar="N", help="in transactions of so many instead"
    )
    group.add_argument(
        "--txn-timeout", type=positive, default=60, metavar="SECONDS",
        help="the broker aborts one that has not ended by then (default 60)",
    )  # fmt: skip


class Transactions:
    def __init__(self, client: Client, options: Namespace) -> None:
        self.wanted: bool = options.txn or options.txn_size is not None
        self._client = client
        self._size: int | None = options.txn_size
        self._timeout_ms = options.txn_timeout * 1000

    def groups(self, items: Iterable[T]) -> Iterator[Iterator[T]]:
        """What goes together. One that is not wanted in transactions is one group."""
        return groups(items, self._size)

    def begin(self) -> AbstractContextManager[Transaction | None]:
        """Commits at its end, and aborts if that is an error; None where none is wanted."""
        if not self.wanted:
            return nullcontext()
        return self._client.new_transaction(self._timeout_ms)
