"""Participants that pass the fault points when a transaction ends, for brokers that have any."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from managed_ledger.prompt import when_done
from pybroker.broker.transactions.txn_participants import LoadsTopics, LocalParticipants
from pybroker.faults.passing import Passing
from pybroker.faults.points import BEHIND_DECISION, MARKER, PENDING_ACK, Action, Recorded
from pybroker.faults.registry import Faults
from pybroker.faults.rule import Rule, waited
from pybroker.transaction.coordinator.ends.participants import Ending, TransactionEnd
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import TxnAction

_WORDS = {TxnAction.COMMIT: "commit", TxnAction.ABORT: "abort"}


class FaultyParticipants(LocalParticipants):
    def __init__(self, topics: LoadsTopics, faults: Faults) -> None:
        super().__init__(topics)
        self._faults = faults

    def end_on_partition(self, end: TransactionEnd, topic: str, not_later: bool = False) -> Ending:
        passing = Passing("", topic, transaction=str(end.txn_id), detail=_WORDS[end.action])
        go_on = partial(super().end_on_partition, end, topic, not_later)
        return self._pass(MARKER, passing, go_on, not_later)

    def end_on_subscription(
        self, end: TransactionEnd, topic: str, subscription: str, not_later: bool = False
    ) -> Ending:
        txn_id, action, _ = end
        passing = Passing("", topic, subscription, transaction=str(txn_id), detail=_WORDS[action])
        go_on = partial(super().end_on_subscription, end, topic, subscription, not_later)
        return self._pass(PENDING_ACK, passing, go_on, not_later)

    def _pass(
        self, step: Recorded, passing: Passing, end: Callable[[], Ending], not_later: bool
    ) -> Ending:
        if not_later and any(map(self._faults.is_armed, BEHIND_DECISION)):
            raise WouldWait
        if not (self._faults.watches(step.point_before) or self._faults.watches(step.point_after)):
            return end()
        if not_later:
            return self._observed(step, passing, end())
        rule = self._strikes(step.point_before, passing)
        if rule is not None:
            return self._later(step, passing, end, rule)
        return self._followed(step, passing, end())

    def _strikes(self, point: str, passing: Passing) -> Rule | None:
        """The rule that strikes, or None. Raises the error of a rule that makes the step fail."""
        rule = self._faults.passing(replace(passing, point=point))
        if rule is not None and rule.action is Action.FAIL:
            raise rule.error()
        return rule

    async def _later(
        self, step: Recorded, passing: Passing, end: Callable[[], Ending], rule: Rule
    ) -> object:
        await waited(rule)
        return await self._followed(step, passing, end())

    async def _followed(self, step: Recorded, passing: Passing, ending: Ending) -> object:
        result = None
        if isinstance(ending, asyncio.Future):
            result = await asyncio.shield(ending)  # others may wait for the same result
        elif ending is not None:
            result = await ending
        rule = self._strikes(step.point_after, passing)
        if rule is not None:
            await waited(rule)
        return result

    def _observed(self, step: Recorded, passing: Passing, ending: Ending) -> Ending:
        """Only reports that the points are passed. They have no rules that could strike: this call
        must not wait.
        """
        self._faults.passing(replace(passing, point=step.point_before))
        after = replace(passing, point=step.point_after)
        if isinstance(ending, asyncio.Future):
            when_done(ending, partial(self._observe, after))
        else:
            self._faults.passing(after)
        return ending

    def _observe(self, after: Passing, ending: "asyncio.Future[object]") -> None:
        if not ending.cancelled() and ending.exception() is None:
            self._faults.passing(after)
