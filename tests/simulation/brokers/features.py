"""Features of a cluster's seed; each seed enables some, so that they meet."""

import random
from typing import Any, Final

from features import ALL as OF_ONE_BROKER
from features.feature import Feature
from sim_scenario import ACTIVE_S

from brokers import trouble
from brokers.administering import Administration, DividedBundles
from brokers.balancing import BalancedBundles, Unloading
from brokers.conditions import AbsentBookies, LateMirrors, OwnIds, UnlikeSettings
from brokers.contending import Contending
from brokers.damaging import DamagedBookie
from brokers.disasters import Castaways, ClocksApart, PowerCuts
from brokers.fencing import FencingOverBrokers
from brokers.leaving import HandingOver
from brokers.migrating import Migrating
from brokers.sending import SentBundles
from brokers.splitting import SplittingOverBrokers


class RestlessBundles(Feature):
    """Bundles move all the time, including those of coordinators."""

    name = "restless bundles"

    def begin(self) -> None:
        self._pause_s = self.rng.choice((0.05, 0.2, 1.0))
        self.world.after(self._pause_s, self._move)

    def _move(self) -> None:
        if self.world.now < trouble.BEGINS_S + ACTIVE_S:
            self.count("bundle moves")
            trouble.move_bundle(self.broker, self.rng)
            self.world.after(2 * self._pause_s * self.rng.random(), self._move)


class Partitions(Feature):
    """Brokers are cut off from ZooKeeper, from bookies, or from each other, for less or more than
    their session timeout. They continue to serve clients.
    """

    name = "partitions"

    def begin(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.world.after(self.some_time(), self._cut)

    def _cut(self) -> None:
        member = self.broker.some_member()
        machines = self.broker.machines
        others = [each.node for each in self.broker.members if each is not member]
        bookies = list(machines.bookies.values())
        peers = self.rng.choice(
            ([machines.zookeeper], [machines.zookeeper], bookies, bookies[:1], others)
        )
        # The longest outlast the time that a broker gives its topics to close.
        seconds = self.rng.choice((0.5, 2.0, 5.0, 9.0, 40.0))
        self.note(f"{member.name} is cut off from {len(peers)} for {seconds} s")
        self.count("partitions")
        for peer in peers:
            if member.node is not None and peer is not None:
                self.world.network.cut_off(member.node, peer, seconds)


class Exodus(Feature):
    """A rolling restart: as soon as one broker serves again, the next one goes down."""

    name = "exodus"

    def begin(self) -> None:
        self._how = self.rng.choice(("stop", "kill", "stall"))
        self.world.after(self.rng.random(), self._next, 0)

    def _next(self, number: int) -> None:
        if self.world.now > trouble.BEGINS_S + ACTIVE_S:
            return
        if not self.broker.serving:
            self.world.after(0.2, self._next, number)
            return
        member = self.broker.members[number % len(self.broker.members)]
        self.count(f"exodus: {self._how}")
        if self._how == "stop":
            member.stop(0.1)
        elif self._how == "kill":
            member.end(0.1)
        else:
            member.stall(self.rng.choice(trouble.STALLS_S))
        self.world.after(0.5, self._next, number + 1)


# Features in which only clients act.
_OF_CLIENTS: Final = (
    *("committing together", "copying", "groups", "preparing", "similar names", "small logs"),
)
ALL: Final[dict[str, type[Any]]] = {
    **{
        each.name: each
        for each in (
            *(RestlessBundles, Partitions, Exodus, Administration, DividedBundles),
            *(BalancedBundles, FencingOverBrokers, Unloading, HandingOver, SentBundles),
            *(LateMirrors, UnlikeSettings, OwnIds, AbsentBookies, Migrating),
            *(SplittingOverBrokers, Contending, PowerCuts, Castaways, ClocksApart),
            DamagedBookie,
        )
    },
    **{name: OF_ONE_BROKER[name] for name in _OF_CLIENTS},
}
_COUNTS: Final = (0, 1, 1, 2, 3)
# Drawn from separate streams, so that older draws of a seed stay the same.
_BESIDE: Final = {
    SentBundles.name: 0.2,
    LateMirrors.name: 0.2,
    UnlikeSettings.name: 0.1,
    OwnIds.name: 0.1,
    AbsentBookies.name: 0.1,
    "preparing": 0.2,
    Migrating.name: 0.15,
    SplittingOverBrokers.name: 0.2,
    Contending.name: 0.1,
    PowerCuts.name: 0.08,
    Castaways.name: 0.08,
    ClocksApart.name: 0.08,
    DamagedBookie.name: 0.08,
}
# Hand-over refuses while there are prepared transactions, and their owners could not reach a broker
# to decide; it refuses while there are scalable topics, too. It aborts what is open, whose owners
# were promised a minute.
_NOT_WITH: Final = {
    "preparing": HandingOver.name,
    Migrating.name: HandingOver.name,
    SplittingOverBrokers.name: HandingOver.name,
    Contending.name: HandingOver.name,
    ClocksApart.name: HandingOver.name,
}


def draw(rng: random.Random, beside: random.Random) -> tuple[str, ...]:
    names = [name for name in ALL if name not in _BESIDE]
    found = rng.sample(names, rng.choice(_COUNTS))
    more = [name for name, share in _BESIDE.items() if beside.random() < share]
    more = [name for name in more if _NOT_WITH.get(name) not in found]
    return tuple(sorted([*found, *more]))
