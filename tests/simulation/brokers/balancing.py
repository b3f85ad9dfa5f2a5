"""Bundles that are moved and divided because of their load, or on request of administrators."""

import random
from dataclasses import replace
from typing import Any, Final

from checks.history import Logs
from clients.plain import Process
from features.feature import Feature
from sim_scenario import ACTIVE_S, Scenario

from brokers import trouble
from brokers.administering import Unanswered, ask, phantoms
from pybroker.base.names import TopicName

_SETTLED_S: Final = 15.0  # several sessions
_UNTIL_BALANCED: Final = 60  # a broker releases one bundle at a time
_STAYS: Final = 5
_AT_MOST: Final = 300
_NO_CONTENT: Final = 204


class BalancedBundles(Feature):
    """Brokers balance their bundles all the time, and divide those with more than a topic or two.
    After the last fault, bundles must stop moving.
    """

    name = "balanced bundles"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        return replace(scenario, bundle_max_topics=rng.choice((1, 2, 1000)))

    def begin(self) -> None:
        self._pause_s = self.rng.choice((0.1, 0.5))
        self.world.after(self._pause_s, self._balance)

    def _balance(self) -> None:
        if self.world.now > trouble.BEGINS_S + ACTIVE_S:
            return
        for member in self.broker.members:
            if member.serving and not member.is_stalled and self.rng.random() < 0.5:
                self.count("bundles balanced")
                member.balance()
        self.world.after(2 * self._pause_s * self.rng.random(), self._balance)

    def rest(self) -> None:
        self.world.sleep(_SETTLED_S)
        self.found: list[str] = []
        quiet = 0  # a client may still come to a bundle that nobody had, and make another move
        for turn in range(_AT_MOST):
            released = [self._looked_after(member) for member in self.broker.members]
            quiet = 0 if turn < _UNTIL_BALANCED or any(released) else quiet + 1
            self.world.sleep(0.2)
            if quiet == _STAYS:
                break
        else:
            self.found = [f"RESTLESS: {released} bundles still move"]
        self.found += phantoms(self.broker)

    def _looked_after(self, member: Any) -> int:
        """The number of bundles that the member gives back."""
        if not member.serving:
            return 0
        before = len(member.owned())
        member.balance()
        self.world.sleep(0.001)
        at_once = len(member.broker.topics.ownership._releasing)
        return at_once or max(0, before - len(member.owned()))

    def account(self, logs: Logs) -> list[str]:
        return self.found


class Unloader(Process):
    """Unloads the namespace, a bundle or a topic at any broker, under open transactions. Topics
    that were loaded when the request began must be unloaded when it is answered.
    """

    def __init__(self, *args: Any, cluster: Any, count: int) -> None:
        super().__init__(*args)
        self.cluster = cluster
        self.left = count

    async def work(self, client: Any) -> None:
        while self.left and not self.stopping:
            self.left -= 1
            await self._unload()
            await self.pause(self.rng.choice((0.05, 0.3, 1.0)))

    async def _unload(self) -> None:
        what, concerned = self._drawn()
        before = self._loaded(concerned)
        try:
            reply = await ask(self.cluster, "PUT", f"{what}/unload")
        except Unanswered as why:
            self.note(f"unload of {what}: {why}")
            return
        self.note(f"unload of {what}: {reply.status}")
        self.history.counts[f"unloaded: {reply.status}"] += 1
        if reply.status == _NO_CONTENT:
            for topic in set(before) & set(self._loaded(concerned)):
                self.history.failures.append(
                    f"UNMOVED: {before[topic]} is still loaded after the unload of {what}"
                )

    def _drawn(self) -> tuple[str, Any]:
        """The path of the request, and a predicate of the topics that it concerns."""
        owners = [member for member in self.cluster.members if member.owned()]
        kind = self.rng.choice(("namespace", "bundle", "topic"))
        if kind == "topic":
            name = self.rng.choice(self.cluster.topics)
            if name.namespace_name == "public/default":
                return f"persistent/public/default/{name.local}", lambda each: each == name
        if kind == "bundle" and owners:
            bundle = self.rng.choice(sorted(self.rng.choice(owners).owned(), key=str))
            return f"namespaces/{bundle.namespace}/{bundle.range}", bundle.holds
        return "namespaces/public/default", lambda each: each.namespace_name == "public/default"

    def _loaded(self, concerned: Any) -> dict[int, TopicName]:
        """Loaded topics by their identity, without those of brokers that are cut off."""
        found = {}
        for member in self.cluster.members:
            if member.serving and not member.is_stalled:
                for topic in member.topics.loaded():
                    placed = member.topics.place_of(topic.name)
                    if concerned(placed) and member.topics.ownership.owns(topic.name):
                        found[id(topic)] = topic.name
                        self.cluster.kept.append(topic)  # so that no other topic gets its identity
        return found


class Unloading(Feature):
    name = "unloading"
    serves_http = True

    def begin(self) -> None:
        self.broker.kept = []
        self.simulation.producers += [
            Unloader(
                self.world,
                self.history,
                f"unloader-{number}",
                cluster=self.broker,
                count=self.rng.choice((3, 10)),
            )
            for number in range(self.rng.choice((1, 2)))
        ]
