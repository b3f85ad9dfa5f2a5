"""Clusters that are not as one would wish: mirrors of the metadata are late, brokers have unlike
settings, bookies have ids of their own or are away when ledgers begin.
"""

import asyncio
from dataclasses import replace
from random import Random
from typing import Any, Final
from unittest.mock import patch

from checks.history import Logs
from clients.plain import Process
from features.feature import Feature
from sim_scenario import Scenario

from brokers.administering import Unanswered, ask
from brokers.trouble import BEGINS_S
from managed_ledger.storage.bookkeeper import metadata
from managed_ledger.storage.bookkeeper.metadata_record import LedgerState, decode
from managed_ledger.storage.zookeeper.refresh import Refresh
from pybroker.base import errors

_PARTITIONS: Final = 6
_LATE_S: Final = (0.05, 0.5, 2.0)


class Newcomer(Process):
    """Creates partitioned topics at one broker, and uses their partitions at once at all."""

    def __init__(self, *args: Any, cluster: Any) -> None:
        super().__init__(*args)
        self.cluster = cluster
        self.number = 0
        self.left = self.rng.randint(3, 8)

    async def work(self, client: Any) -> None:
        while self.left:
            self.number += 1
            path = f"persistent/public/default/new-{self.number}/partitions"
            try:
                made = await ask(self.cluster, "PUT", path, b"%d" % _PARTITIONS)
            except Unanswered as why:
                self.note(f"create: {why}")
                continue
            if made.is_done:
                await self._use(client, f"persistent://public/default/new-{self.number}")
                self.left -= 1
            await self.pause(1.0)

    async def _use(self, client: Any, topic: str) -> None:
        try:
            await (await client.create_producer(topic)).close()
            await (await client.subscribe(topic, "s")).close()
        except (errors.NotAllowed, errors.TopicNotFound) as refusal:
            self.history.failures.append(f"REFUSED: {topic} is there, but {refusal}")


class LateMirrors(Feature):
    """What other brokers wrote is seen late, unless a broker asks for it."""

    name = "late mirrors"
    serves_http = True

    def __init__(self, simulation: Any) -> None:
        super().__init__(simulation)
        late_s = self.rng.choice(_LATE_S)

        class LateRefresh(Refresh):
            def request(self) -> None:
                asyncio.get_running_loop().call_later(late_s, super().request)

            def request_now(self) -> None:
                super().request()

        async def events_handled(mirror: Any) -> None:
            done = mirror._foreign.wait()
            mirror._refresh.request_now()
            await done

        self._patches = (
            patch.object(metadata, "Refresh", LateRefresh),
            patch.object(metadata.Metadata, "_events_handled", events_handled),
        )
        for each in self._patches:
            each.start()

    def begin(self) -> None:
        self.simulation.producers.append(
            Newcomer(self.world, self.history, "newcomer", cluster=self.broker)
        )

    def end(self) -> None:
        for each in self._patches:
            each.stop()


class UnlikeSettings(Feature):
    """A broker is configured with fewer transaction coordinators than the others, and comes after
    them: brokers with more would not start beside it.
    """

    name = "unlike settings"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: Random) -> Scenario:
        return replace(scenario, coordinators=4)

    def __init__(self, simulation: Any) -> None:
        super().__init__(simulation)
        member = self.rng.choice(self.broker.members)
        fewer = self.rng.choice((1, 2, 3))
        member._config = replace(member._config, transaction_coordinators=fewer)
        member.is_resting = True
        self.world.after(BEGINS_S + 2.0, self._come, member)

    def _come(self, member: Any) -> None:
        if not any(each.serving for each in self.broker.members):
            self.world.after(0.5, self._come, member)
            return
        member.is_resting = False
        member.start()


class OwnIds(Feature):
    """Bookies are named by ids that are not addresses."""

    name = "ids of bookies"

    def __init__(self, simulation: Any) -> None:
        super().__init__(simulation)
        machines = self.broker.machines
        for number, (port, disk) in enumerate(machines.disks.items()):
            disk.bookie_id = f"bookie-{number}"
            machines.crash_bookie(port, False, 0.0)


class AbsentBookies(Feature):
    """A bookie is away when ledgers begin. Once they are closed, auto-recovery must know which
    copies they lack.
    """

    name = "absent bookies"

    def __init__(self, simulation: Any) -> None:
        super().__init__(simulation)
        self._leave(self.rng.choice((5.0, 15.0)) + BEGINS_S)

    def begin(self) -> None:
        for _ in range(self.rng.choice((0, 1, 2))):
            self.world.after(self.some_time(), self._leave, self.rng.choice((4.0, 12.0)))

    def _leave(self, down_s: float) -> None:
        port = self.rng.choice(list(self.broker.machines.disks))
        self.note(f"bookie {port} is away for {down_s} s")
        self.count("bookies away")
        self.broker.machines.crash_bookie(port, False, down_s)

    def account(self, logs: Logs) -> list[str]:
        wanted, found = self.broker.topology.quorums, []
        for path, node in sorted(self.broker.machines.tree.nodes.items()):
            name = path.rpartition("/")[2]
            if not (path.startswith("/ledgers/") and name[:1] == "L" and name[1:].isdigit()):
                continue
            ledger = decode(node.value)
            is_whole = ledger.quorums.write >= wanted.write or ledger.quorums.is_striped
            if ledger.state is LedgerState.CLOSED and ledger.last_entry_id >= 0 and not is_whole:
                found.append(f"FEW COPIES: {path} asks for {ledger.quorums.write} copies for ever")
        return found
