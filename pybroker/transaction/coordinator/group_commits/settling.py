"""Finds out what the leaders of promised members have decided, and settles the members.

A verdict known on this broker takes effect at once. After a crash, or if another broker serves the
leader's coordinator, that coordinator is asked until it knows.
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
from pybroker.transaction.coordinator.group_commits.group_ends import Pledge, Verdict

_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 1.0

Verdicts = list[bool | None]

log = logging.getLogger(__name__)


class Settling:
    """Settles members of the coordinators in `serving`. `known` answers at once: None if it does
    not know. `ask_leader` may ask another broker, and raises PulsarError.
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
        self._asking = set[tuple[int, int]]()  # (coordinator of members, coordinator of leaders)
        self._closed = False

    def settle(self, coordinator_id: int) -> None:
        """Settle the promised members whose verdict is known; ask about the others soon."""
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
        finally:  # in the turn of the last look: a later promise must not rely on this task
            self._settling.discard(coordinator_id)

    async def _settled(self, coordinator_id: int) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
            coordinator = self._serving.get(coordinator_id)
            if coordinator is None:  # when it is opened again, `settle` starts over
                return
            self._ask_leaders(coordinator)
            if not coordinator.group_ends.pledges:
                return

    def _ask_leaders(self, coordinator: TransactionCoordinator) -> None:
        """Ask the leaders' coordinators in parallel, so that a silent one does not delay the
        others; at most one question at a time to each.
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
        """Ask about leaders of one coordinator. Stops at the first error: it would meet the others
        too.
        """
        for leader, pledges in led.items():
            try:
                await self.ask(coordinator, leader, pledges)
            except PulsarError as error:
                log.info("Members of the group of %s remain promised: %s", leader, error)
                return

    async def ask(
        self, coordinator: TransactionCoordinator, leader: TxnId, pledges: Mapping[int, Pledge]
    ) -> None:
        """Settle these pledges to one leader, as far as its coordinator knows the verdicts. Raises
        the errors of `ask_leader`, and TransactionCoordinatorNotFound.
        """
        members = [TxnId(coordinator.coordinator_id, each) for each in pledges]
        found = await self._ask_leader(leader, members)
        coordinator.group_ends.conclude(pledges, dict(zip(pledges, found, strict=True)))

    def close(self) -> None:
        """Stop asking. Promises remain in force until the next start settles them."""
        self._closed = True
