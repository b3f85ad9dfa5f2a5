"""The options for transactions, shared by `produce` and `consume`."""

import argparse
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from pybroker.client import Client, Transaction
from pybroker.commands.messages.values import groups, positive

T = TypeVar("T")


def add_transactions(parser: argparse.ArgumentParser, what: str) -> None:
    group = parser.add_argument_group("transactions (pybroker extension)")
    group.add_argument("--txn", action="store_true", help=f"put {what} in one transaction")
    group.add_argument(
        "--txn-size", type=positive, metavar="N", help="use transactions of N messages instead"
    )
    group.add_argument(
        "--txn-timeout", type=positive, default=60, metavar="SECONDS",
        help="the broker aborts a transaction open for longer (default 60)",
    )  # fmt: skip


class Transactions:
    def __init__(self, client: Client, options: Namespace) -> None:
        self.wanted: bool = options.txn or options.txn_size is not None
        self._client = client
        self._size: int | None = options.txn_size
        self._timeout_ms = options.txn_timeout * 1000

    def groups(self, items: Iterable[T]) -> Iterator[Iterator[T]]:
        """Groups the items by transaction; a single group if transactions are not requested."""
        return groups(items, self._size)

    def begin(self) -> AbstractContextManager[Transaction | None]:
        """A transaction that commits at the end of the block, or aborts after an error; None if
        transactions are not requested.
        """
        if not self.wanted:
            return nullcontext()
        return self._client.new_transaction(self._timeout_ms)
