"""Finding waiting entries without looking at every acknowledged one."""

from typing import Any

import pytest
from dispatch_fakes import FakeTopic, with_topic

from managed_ledger.position import Position
from pybroker.broker.subscriptions.waiting_entries import nth_waiting


class CountingCursor:
    """Counts the ranges that it returns."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.mark_delete_position = cursor.mark_delete_position
        self.told = 0

    def deleted_within(self, *span: int) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = self._cursor.deleted_within(*span)
        self.told += len(ranges)
        return ranges


@pytest.mark.slow
@pytest.mark.parametrize(("number", "most"), [(1, 1000), (9000, 20_000), (10_001, 20_000)])
def test_an_entry_that_waits_is_found_without_telling_all_that_does_not(
    number: int, most: int
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        ledger_id = (await topic.publish(20_000))[0].ledger_id
        subscription = await topic.subscribe()
        for entry_id in range(1, 20_000, 2):
            subscription.cursor.delete(ledger_id, entry_id)
        cursor: Any = CountingCursor(subscription.cursor)
        found = nth_waiting(topic.ledger, cursor, topic.hidden, number)
        expected = Position(ledger_id, 2 * number - 2) if number <= 10_000 else None
        assert (found, cursor.told <= most) == (expected, True)

    with_topic(scenario)
