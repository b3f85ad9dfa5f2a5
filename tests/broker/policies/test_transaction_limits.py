"""Limits of open transactions may be reached, but not exceeded."""

import pytest

from pybroker.broker.policies.transaction_limits import Room
from pybroker.transaction.buffer.open_contents import Held


@pytest.mark.parametrize(
    ("room", "excess"),
    [
        (Room(0, 0), None),
        (Room(5, 50), None),
        (Room(4, 50), "5 messages; the limit is 4"),
        (Room(5, 49), "50 bytes; the limit is 49"),
        (Room(1, 1), "5 messages; the limit is 1"),
        (Room(0, 1), "50 bytes; the limit is 1"),
    ],
)
def test_a_limit_may_be_reached_and_not_exceeded(room: Room, excess: str | None) -> None:
    held = Held()
    held.messages, held.size_bytes = 3, 20
    assert room.excess(held, 2, 30) == excess
