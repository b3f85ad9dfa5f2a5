"""What a snapshot of the pending-ack log keeps beside the open transactions: the messages that
consumers have passed over, and the lives of clients.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

from managed_ledger.cursor import ManagedCursor
from managed_ledger.position import Position
from pybroker.transaction.pending_acks.acks_of_transaction import AcksOfTransaction
from pybroker.transaction.pending_acks.records import Held, LifeRecord, PassedOverRecord, Record
from pybroker.transaction.pending_acks.state import PendingAckState

_MESSAGES_PER_RECORD: Final = 500

Kept = tuple[Mapping[Position, Held], Sequence[LifeRecord]]


def kept_records(
    state: PendingAckState, kept: Callable[[], Kept], cursor: ManagedCursor
) -> Iterator[Record | None]:
    """Request these after the state's records, so that an abort in between is in one or the other.

    Transactions whose abort is in progress are included here, because the state's records leave
    them out. The set of entries is fixed at the beginning; each record is up to date when it is
    requested.
    """
    given_back, lives = kept()
    yield from lives
    aborting = [(each, tuple(each.positions())) for each in state.being_aborted()]
    left = chain(
        ((at, _held(kept, at, None)) for at in tuple(given_back)),
        ((at, _held(kept, at, each)) for each, positions in aborting for at in positions),
    )
    while some := list(islice(left, _MESSAGES_PER_RECORD)):
        messages = {at: held for at, held in some if held is not None and not cursor.is_deleted(at)}
        yield PassedOverRecord(messages) if messages else None


def _held(
    kept: Callable[[], Kept], position: Position, aborting: AcksOfTransaction | None
) -> Held | None:
    """The part of the entry that aborted transactions held back from consumers, and the part that
    `aborting` still holds back.
    """
    passed = kept()[0].get(position)
    held = None if aborting is None else aborting.held_of(position)
    return passed | held if passed and held else passed or held
