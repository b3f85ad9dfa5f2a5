"""What an abort has given back, as it is delivered again."""

from managed_ledger.position import Position
from pybroker.broker.dispatch.delivery import Delivery
from pybroker.broker.dispatch.given_back import GivenBack
from pybroker.transaction.pending_acks.records import HELD_WHOLE

BATCH = Position(7, 1)
SIZE = 2


def test_the_last_message_of_a_batch_is_known_when_it_comes_again_in_parts() -> None:
    """It was given back as a whole, without its size (seed 170010298)."""
    known = GivenBack()
    known.add({BATCH: HELD_WHOLE}, held_at=1, now=2, is_deleted=lambda position: False)
    partial = Delivery(7, [1], [b""], [1], {1: (0b01, SIZE)})
    known.delivered(partial, read_to=BATCH, now=3)
    first, last = known.of(BATCH)
    assert (first.has(-1), last.has(-1)) == (False, True)
    assert (first.has(0), last.has(0)) == (True, False)
