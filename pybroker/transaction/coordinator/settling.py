"""Asks what the leaders of promised members have decided, until it is known.

What is known here takes effect at once. For the rest, it asks the leaders' coordinators: after a
crash, or if another broker serves them.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from pybroker.base.errors import PulsarError
from pybroker.base.names import TxnId
from pybroker.base.runtime import Tasks
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.group_ends import Pledge, Verdict

_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 1.0

Verdicts = list[bool | None]

log = logging.getLogger(__name__)


class Settling:
    """Of the coordinators in `serving`. `known` answers at once, also that it does not know;
    `ask_leader` may travel, and raises PulsarError.
    """

    def __init__(
        self,
        serving: Mapping[int, TransactionCoordinator],
        tasks: Tasks,
        known: Verdict,
        ask_leader: Callable[[TxnId, Sequence[TxnId]], Awaitable[Verdicts]],
    ) -> None:
        self._serving = serving
        self._tasks = tasks
        self._known = known
        self._ask_leader = ask_leader
        self._settling = set[int]()  # coordinators whose members' leaders are being asked
        self._asking = set[tuple[int, int]]()  # a member's coordinator, and a leader's
        self._closed = False

    def settle(self, coordinator_id: int) -> None:
        """End the promised transactions whose outcome is known; ask about the others later."""
        coordinator = self._serving.get(coordinator_id)
        if self._closed or coordinator is None:
            return
        coordinator.group_ends.settle(self._known)
        if coordinator.group_ends.pledges and coordinator_id not in self._settling:
            self._settling.add(coordinator_id)
            self._tasks.start(
                self._ask_again_and_again(coordinator_id), f"promises of {coordinator_id}"
            )

    async def _ask_again_and_again(self, coordinator_id: int) -> None:
        try:
            await self._settled(coordinator_id)
        finally:  # in this turn: a promise in the next one must not rely on this task
            self._settling.discard(coordinator_id)

    async def _settled(self, coordinator_id: int) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
            coordinator = self._serving.get(coordinator_id)
            if coordinator is None:  # the next opening starts over
                return
            self._ask_leaders(coordinator)
            if not coordinator.group_ends.pledges:
                return

    def _ask_leaders(self, coordinator: TransactionCoordinator) -> None:
        """Those of different coordinators side by side: one that does not answer does not delay
        what others say. Each coordinator once at a time.
        """
        led = defaultdict[int, dict[TxnId, dict[int, Pledge]]](lambda: defaultdict(dict))
        for member, pledge in coordinator.group_ends.pledges.items():
            led[pledge.leader.most][pledge.leader][member] = pledge
        for most, part in led.items():
            question = coordinator.coordinator_id, most
            if question not in self._asking:
                self._asking.add(question)
                asking = self._tasks.start(self._ask_each(coordinator, part), f"leaders {question}")
                asking.add_done_callback(partial(self._asked, question))

    def _asked(self, question: tuple[int, int], _: "asyncio.Task[None]") -> None:
        self._asking.discard(question)

    async def _ask_each(
        self,
        coordinator: TransactionCoordinator,
        led: Mapping[TxnId, Mapping[int, Pledge]],
    ) -> None:
        """Leaders of one coordinator: what fails for one would fail for the others."""
        for leader, pledges in led.items():
            try:
                await self.ask(coordinator, leader, pledges)
            except PulsarError as error:
                log.info("Members of the group of %s remain promised: %s", leader, error)
                return

    async def ask(
        self, coordinator: TransactionCoordinator, leader: TxnId, pledges: Mapping[int, Pledge]
    ) -> None:
        """Settle these pledges of one leader, as far as its coordinator knows. Raises what that
        answers, and TransactionCoordinatorNotFound.
        """
        members = [TxnId(coordinator.coordinator_id, each) for each in pledges]
        found = await self._ask_leader(leader, members)
        coordinator.group_ends.conclude(pledges, dict(zip(pledges, found, strict=True)))

    def close(self) -> None:
        """Promises remain until the next start."""
        self._closed = True
