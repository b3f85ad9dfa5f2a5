"""A transaction buffer's snapshot, so that recovery reads only the newest entries.

A snapshot is a head (position, open transactions) and one value per ledger that has hidden entries,
under `transaction-buffer/<ledger name>/`. The head is written last. The values written before it
may cover entries after its position; the scan from there finds these entries again.
"""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from managed_ledger.codec import Reader, Writer
from managed_ledger.position import Position
from managed_ledger.storage.backend import KeyAt, MetadataStore
from pybroker.base.names import TxnId
from pybroker.base.runtime import Pace
from pybroker.transaction.buffer.transaction_ranges import TransactionRanges

_FORMAT: Final = 1
_SNAPSHOTS: Final = "transaction-buffer/"
_NUMBERS_A_TURN: Final = 10_000


@dataclass(frozen=True, slots=True)
class OpenTransactionRecord:
    txn_id: TxnId
    opened_at_ms: int
    ranges: TransactionRanges


@dataclass(frozen=True, slots=True)
class BufferHead:
    """The open transactions and the hidden entries cover everything up to `position`."""

    position: Position
    open_transactions: list[OpenTransactionRecord]

    @classmethod
    def decode(cls, value: bytes, key: str) -> "BufferHead":
        data = Reader(value, f"the transaction buffer's snapshot {key!r}")
        data.version(_FORMAT)
        position = Position(data.number() - 1, data.number() - 1)
        return cls(position, [_read_transaction(data) for _ in range(data.number())])


async def encode_buffer_head(
    position: Position, transactions: Iterable[OpenTransactionRecord]
) -> bytes:
    """Encode the head of the current state: `transactions` must be those open now. This is done
    piece by piece; ranges added meanwhile are after `position`, and finding them twice does no
    harm.
    """
    pace = Pace(_NUMBERS_A_TURN)
    body, count = Writer(), 0
    for transaction in transactions:
        flat = transaction.ranges.flat[:]
        count += 1
        body.numbers((*transaction.txn_id, transaction.opened_at_ms, len(flat) // 3))
        for at in range(0, len(flat), _NUMBERS_A_TURN):
            some = flat[at : at + _NUMBERS_A_TURN]
            body.numbers(some)
            await pace.step(4 + len(some))
    head = Writer()
    head.number(_FORMAT)
    head.number(position.ledger_id + 1)
    head.number(position.entry_id + 1)
    head.number(count)
    head.raw(body.getvalue())
    return head.getvalue()


def _read_transaction(data: Reader) -> OpenTransactionRecord:
    most, least, opened_at_ms, count = data.numbers(4)
    flat = array("q", data.numbers(3 * count))
    return OpenTransactionRecord(TxnId(most, least), opened_at_ms, TransactionRanges(flat))


def _prefix(ledger_name: str) -> str:
    return f"{_SNAPSHOTS}{quote(ledger_name, safe='')}/"


def snapshot_keys(metadata: MetadataStore, ledger_name: str) -> list[str]:
    """The keys of one buffer's values."""
    return metadata.keys(_prefix(ledger_name))


def ledgers_with_snapshots(metadata: MetadataStore) -> list[str]:
    folders = {key.split("/")[1] for key in metadata.keys(_SNAPSHOTS)}
    return sorted(map(unquote, folders))


class BufferSnapshots:
    """One buffer's values in the metadata store."""

    __slots__ = (
        "_ledger_name",
        "_metadata",
    )

    def __init__(self, metadata: MetadataStore, ledger_name: str) -> None:
        self._metadata = metadata
        self._ledger_name = ledger_name

    @property
    def _prefix(self) -> str:
        return _prefix(self._ledger_name)

    def head(self) -> BufferHead | None:
        key = f"{self._prefix}head"
        stored = self._metadata.get(key)
        return None if stored is None else BufferHead.decode(stored.value, key)

    def hidden(self) -> dict[int, bytes]:
        """Encoded hidden entries by ledger id."""
        found = {}
        for key in self._metadata.keys(f"{self._prefix}hidden/"):
            stored = self._metadata.get(key)
            assert stored is not None
            found[int(key.rpartition("/")[2])] = stored.value
        return found

    async def write(
        self,
        head: bytes,
        hidden: dict[int, bytes],
        only_while: Callable[[], KeyAt | None] = lambda: None,
    ) -> None:
        """Raises ManagedLedgerError; BadVersion if the condition does not hold at a write."""
        for ledger_id, value in hidden.items():
            await self._metadata.put(self._hidden_key(ledger_id), value, only_while=only_while())
        await self._metadata.put(f"{self._prefix}head", head, only_while=only_while())

    async def drop_ledgers(self, ledger_ids: list[int]) -> None:
        for ledger_id in ledger_ids:
            await self._metadata.delete(self._hidden_key(ledger_id))

    def _hidden_key(self, ledger_id: int) -> str:
        return f"{self._prefix}hidden/{ledger_id}"
