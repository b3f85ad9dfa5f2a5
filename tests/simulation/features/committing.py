"""Transactions that commit by one decision, like the tasks of a Spark job: all of a group are
visible, or none is.

In some groups one member ends alone, before the decision or during it. Then the decision is
refused, and no message of the others is visible. The broker crashes around the decision.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final

from checks.history import Logs, Outcome, Txn
from clients.transacting import FAILURES, Transacting
from sim_scenario import Scenario

from features.feature import Feature, half_way

NAMES: Final = ("together-0", "together-1", "together-2")
TOPICS: Final = tuple(f"persistent://public/default/{name}" for name in NAMES)


@dataclass(slots=True)
class Group:
    name: str
    members: list[Txn] = field(default_factory=list)
    # By member: the messages sent and confirmed.
    values: list[list[str]] = field(default_factory=list)
    decision: Outcome | None = None
    # The member whose end alone was requested.
    alone: int | None = None

    def of_the_rest(self) -> list[str]:
        """The messages of the members that can only end together."""
        parts = [part for number, part in enumerate(self.values) if number != self.alone]
        return [value for part in parts for value in part]


class Committer(Transacting):
    """Begins groups, lets each member publish, and asks for one decision until it is known."""

    topics: ClassVar[tuple[str, ...]] = TOPICS

    def __init__(self, *args: Any, count: int, about_to_decide: Callable[[], None]) -> None:
        super().__init__(*args)
        self.groups: list[Group] = []
        self._left = count
        self._about_to_decide = about_to_decide

    async def work(self, client: Any) -> None:
        for group in self.groups:
            if group.decision is Outcome.UNKNOWN:  # an earlier life died before it knew
                await self._decide(client, group)
        producers = [await client.create_producer(topic) for topic in self.topics]
        while self._left:
            self._left -= 1
            group = Group(f"{self.name}/{self._left}")
            self.groups.append(group)
            await self._work_on(client, producers, group)
            await self.pause(0.5)

    async def _work_on(self, client: Any, producers: Sequence[Any], group: Group) -> None:
        try:
            await self._begin_and_publish(client, producers, group)
        except FAILURES as error:
            self.note(f"{group.name} failed: {error!r}")
            await self._abort_all(client, group)
            return
        fate = self.rng.choices(("commit", "too late", "race", "abandon"), (70, 12, 10, 8))[0]
        if fate == "commit":
            await self._decide(client, group)
        elif fate != "abandon":
            group.alone = self.rng.randrange(1, len(group.members))
            alone = self._end_alone(client, group.members[group.alone])
            if fate == "too late":
                await alone
                await self._decide(client, group)
            else:
                await asyncio.gather(self._decide(client, group), alone)

    async def _begin_and_publish(self, client: Any, producers: Sequence[Any], group: Group) -> None:
        leader, record = await self.begin(client)
        txns = [leader]
        group.members.append(record)
        for _ in range(self.rng.randint(1, 4)):
            txns.append(await client.new_transaction(15_000, beside=leader.txn_id))
            txn_id = txns[-1].txn_id
            group.members.append(self.history.begin(f"{group.name} {txn_id}", txn_id, self.node))
        for number, txn in enumerate(txns):
            group.values.append([])
            for each in range(self.rng.randint(1, 3)):
                value = f"{group.name}.{number}.{each}"
                await self.rng.choice(producers).send(value.encode(), txn=txn)
                group.values[-1].append(value)

    async def _decide(self, client: Any, group: Group) -> None:
        """Asks for the decision. If it is refused, aborts the members."""
        group.decision = Outcome.UNKNOWN
        for member in group.members:
            member.commit = member.commit or Outcome.UNKNOWN
        self._about_to_decide()
        leader, *others = [member.txn_id for member in group.members]
        commit = partial(client.attach_transaction(leader).commit, together_with=others)
        group.decision = await self._until_answered(commit, f"commit of {group.name}")
        self.history.counts[f"committed together: {group.decision.value}"] += 1
        if group.decision is Outcome.REFUSED:
            for number, member in enumerate(group.members):
                if number != group.alone:  # that one may have committed
                    member.commit = Outcome.REFUSED
            await self._abort_all(client, group)
            return
        for member in group.members:
            member.commit = Outcome.DONE

    async def _end_alone(self, client: Any, member: Txn) -> None:
        txn = client.attach_transaction(member.txn_id)
        if self.rng.random() < 0.5:
            member.abort = await self._until_answered(txn.abort, f"abort of {member.name} alone")
            return
        member.commit = member.commit or Outcome.UNKNOWN
        if await self._until_answered(txn.commit, f"commit of {member.name} alone") is Outcome.DONE:
            member.commit = Outcome.DONE

    async def _abort_all(self, client: Any, group: Group) -> None:
        for member in group.members:
            txn = client.attach_transaction(member.txn_id)
            await self._until_answered(txn.abort, f"abort of {member.name}")


class CommittingTogether(Feature):
    name = "committing together"
    committer: ClassVar[type[Committer]] = Committer

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        names = (topic.rpartition("/")[2] for topic in cls.committer.topics)
        guards = tuple((name, "guard") for name in names)
        return replace(scenario, guards=(*scenario.guards, *guards))

    def begin(self) -> None:
        self.crashes = self.rng.choice((0, 1, 2, 4))
        count = self.rng.choice((2, 6, 12))
        self.committers = [
            self.committer(
                self.world,
                self.history,
                f"{self.name}-{number}",
                count=count,
                about_to_decide=self._maybe_crash,
            )
            for number in range(self.rng.randint(1, 2))
        ]
        self.simulation.producers += self.committers

    def _maybe_crash(self) -> None:
        if self.crashes and self.broker.serving and self.rng.random() < 0.3:
            self.crashes -= 1
            self.count("crashes at a decision")
            self.broker.crash(half_way(self.rng))

    def heal(self) -> None:
        self.crashes = 0

    def account(self, logs: Logs) -> list[str]:
        read = self.simulation.read_all(list(self.committer.topics))
        visible = {message.value for log in read.values() for message in log}
        groups = [group for committer in self.committers for group in committer.groups]
        return [text for group in groups for text in _broken(group, visible)]


def _broken(group: Group, visible: set[str]) -> list[str]:
    wanted = group.of_the_rest()
    there = [value for value in wanted if value in visible]
    missing = [value for value in wanted if value not in visible]
    if group.decision is Outcome.DONE and missing:
        return [f"LOST TOGETHER: {group.name} has committed, and {missing} are not there"]
    if there and missing:
        return [f"HALF TOGETHER: of {group.name} {there} are there, and {missing} are not"]
    if group.decision in (None, Outcome.REFUSED) and there:
        return [f"ABORTED TOGETHER: {group.name} did not commit, and {there} are there"]
    return []


FEATURES: Final = (CommittingTogether,)
