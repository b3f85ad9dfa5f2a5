"""Administrators of a cluster send requests to any broker while faults happen."""

import asyncio
from typing import Any, Final

import h11
from checks.history import Logs
from clients.plain import Process, value_of
from features.feature import Feature

from brokers import trouble
from pybroker.broker.brokers.other_brokers import Reply
from pybroker.broker.deletion.deletions import PREFIX as TOMBSTONES
from pybroker.broker.namespaces.tenants import GOING
from pybroker.client import aio
from pybroker.client.errors import Timeout
from pybroker.cluster.admin_client import request_over_http
from pybroker.cluster.bundle_ownership import path_of

_NAMESPACE: Final = "public/passing"
_PARTITIONS: Final = 3
_ANSWER_S: Final = 100.0  # longer than a broker waits for another broker
_REDIRECTS: Final = 8
_LOOK_S: Final = 60.0
_SETTLED_S: Final = 15.0  # several sessions
_FINISHED_S: Final = 100.0  # as long as three brokers wait together, and more
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409


class Unanswered(Exception):
    """The request may have been carried out, or may still be."""


class Administrator(Process):
    """Creates a namespace with a partitioned topic, publishes and looks. Then it deletes the topic
    or the namespace, at up to two brokers at once. After a failure it often does not ask again:
    what has begun, the brokers must finish. Messages confirmed after a deletion must remain until
    the next one.
    """

    def __init__(self, *args: Any, cluster: Any) -> None:
        super().__init__(*args)
        self.cluster = cluster
        self.left = self.rng.randint(2, 5)
        self.name_number = 0  # changes if an unanswered request may still delete it
        self.generation = 0
        self.confirmed: list[str] = []
        self.begun = False  # whether the deletion has begun

    @property
    def local(self) -> str:
        return f"parcels-{self.name_number}"

    @property
    def topic(self) -> str:
        return f"persistent://{_NAMESPACE}/{self.local}"

    async def work(self, client: Any) -> None:
        former = None
        while self.left:
            if not self.begun:
                await self._create()
                await self._fill(client)
                former = await self._look(client, former)
                self.begun = True
            if await self._delete():
                self.history.counts["deletions over brokers"] += 1
            else:
                self.name_number += 1
            self.left -= 1
            self.generation += 1
            self.confirmed.clear()
            self.begun = False

    # --- steps

    async def _create(self) -> None:
        while True:
            try:
                said = b'{"bundles": {"numBundles": %d}}' % self.rng.choice((1, 3, 5))
                made = await self._ask("PUT", f"namespaces/{_NAMESPACE}", said)
                path = f"persistent/{_NAMESPACE}/{self.local}/partitions"
                if made.is_done or made.status == _CONFLICT:
                    made = await self._ask("PUT", path, b"%d" % _PARTITIONS)
                if made.is_done or (made.status == _CONFLICT and b"exists" in made.body):
                    return
                self.note(f"create: {made.status} {made.body[:200]!r}")
            except Unanswered as why:
                self.note(f"create: {why}")
            await self.pause(1.0)

    async def _fill(self, client: Any) -> None:
        producer = await client.create_producer(self.topic)
        for _ in range(self.rng.randint(1, 6)):
            value = f"{self.name}#{self.generation}/{len(self.confirmed)}.{self.incarnation}"
            await producer.send(value.encode(), partition_key=value)
            self.confirmed.append(value)
            await self.pause(0.1)

    async def _look(self, client: Any, former: Any = None) -> Any:
        """Returns the consumer. Producer and consumer stay, and reconnect while the topic is
        deleted. If that was created again before they tried, the `former` consumer has the
        subscription, which is Exclusive.
        """
        if former is not None:
            await former.close()
        consumer = await client.subscribe(
            self.topic, "look", initial_position=aio.InitialPosition.Earliest
        )
        missing, until_s = set(self.confirmed), self.world.now + _LOOK_S
        while missing and self.world.now < until_s:
            try:
                missing.discard(value_of(await consumer.receive(timeout_millis=1000)))
            except Timeout:
                continue
        if missing:
            self.history.failures.append(f"SWALLOWED: {sorted(missing)} are not in {self.topic}")
        return consumer

    async def _delete(self) -> bool:
        """True if no earlier request can take effect any more."""
        path = f"persistent/{_NAMESPACE}/{self.local}/partitions"
        if self.rng.random() < 0.4:
            path = f"namespaces/{_NAMESPACE}"
        is_sure = True
        while True:
            count = self.rng.choice((1, 2))
            asking = [self._ask("DELETE", f"{path}?force=true") for _ in range(count)]
            replies = await asyncio.gather(*asking, return_exceptions=True)
            for reply in replies:
                if isinstance(reply, Unanswered):
                    is_sure = False
                elif isinstance(reply, BaseException):
                    raise reply
            done = [each for each in replies if isinstance(each, Reply)]
            if done and all(each.is_done or each.status == _NOT_FOUND for each in done):
                return is_sure
            self.note(f"delete: {replies}")
            if len(done) == count and self.rng.random() < 0.5:
                self.history.counts["deletions given up"] += 1
                return is_sure
            await self.pause(1.0)

    # --- requests

    async def _ask(self, method: str, target: str, body: bytes = b"") -> Reply:
        return await ask(self.cluster, method, target, body)


async def ask(cluster: Any, method: str, target: str, body: bytes = b"") -> Reply:
    """Sends the request to some broker, and follows its redirects. Raises Unanswered."""
    url, target = cluster.some_member().http_url, f"/admin/v2/{target}"
    try:
        async with asyncio.timeout(_ANSWER_S):
            for _ in range(_REDIRECTS):
                reply = await request_over_http(url, method, target, body)
                if reply.status != 307:
                    return reply
                host, _, rest = reply.location.removeprefix("http://").partition("/")
                url, target = f"http://{host}", f"/{rest}"
    except (OSError, EOFError, TimeoutError, h11.RemoteProtocolError) as why:
        raise Unanswered(repr(why)) from why
    raise Unanswered("it is redirected without end")


class Administration(Feature):
    name = "administration"
    serves_http = True

    def begin(self) -> None:
        self.simulation.producers.append(
            Administrator(self.world, self.history, "administrator", cluster=self.broker)
        )

    def rest(self) -> None:
        """A deleted namespace leaves no bundles and no topics, and every deletion ends."""
        self.found: dict[str, None] = {}
        self.world.sleep(_SETTLED_S)
        self._wait_for_brokers()  # the time to finish begins with them
        until_s = self.world.now + _FINISHED_S
        while (unfinished := self._unfinished()) and self.world.now < until_s:
            self.world.sleep(1.0)
        self.found |= {f"UNFINISHED: the deletion {each}": None for each in unfinished}
        for member in self.broker.members:
            if member.serving and not member.topics.tenants.has_namespace(_NAMESPACE):
                bundles = [str(each) for each in member.owned() if each.namespace == _NAMESPACE]
                left = [*bundles, *member.broker.ledgers.names(f"{_NAMESPACE}/")]
                self.found |= {f"LEFT: {each} of a namespace that is gone": None for each in left}

    def _unfinished(self) -> set[str]:
        """The keys of deletions that have begun and not ended, as far as serving brokers know."""
        self._wait_for_brokers()
        found: set[str] = set()
        for member in self.broker.members:
            if member.serving:
                metadata, tenants = member.backend.metadata, member.topics.tenants
                topics = tenants.partitioned_topics(_NAMESPACE)
                found.update(*map(metadata.keys, (GOING, TOMBSTONES)))
                found.update(str(each) for each in topics if tenants.doomed_partitions(each))
        return found

    def _wait_for_brokers(self) -> None:
        members = self.broker.members
        self.simulation.wait(
            lambda: any(member.serving for member in members), "a broker that knows of deletions"
        )

    def account(self, logs: Logs) -> list[str]:
        return list(self.found)


class DividedBundles(Feature):
    """Bundles are divided and given back, several at a time, including those of coordinators."""

    name = "divided bundles"

    def begin(self) -> None:
        self._pause_s = self.rng.choice((0.1, 0.5))
        self.left = 40  # each division adds a bundle
        self.world.after(self._pause_s, self._divide)

    def _divide(self) -> None:
        if self.left <= 0 or self.world.now > trouble.BEGINS_S + 20:
            return
        for member in self.broker.members:
            bundles = sorted(member.owned(), key=str)
            if bundles and not member.is_stalled and self.rng.random() < 0.7:
                self.left -= 1
                self.count("bundles divided")
                bundle = self.rng.choice(bundles)
                middle = (bundle.low + bundle.high) // 2
                member.divide(bundle, middle)
        if self.rng.random() < 0.6:
            trouble.move_bundle(self.broker, self.rng)
        self.world.after(2 * self._pause_s * self.rng.random(), self._divide)

    def rest(self) -> None:
        """A broker that has a bundle has its node."""
        self.world.sleep(_SETTLED_S)
        self.found = phantoms(self.broker)

    def account(self, logs: Logs) -> list[str]:
        return self.found


def phantoms(cluster: Any) -> list[str]:
    nodes = cluster.machines.tree.nodes
    return [
        f"PHANTOM: {member.name} has {bundle}, and not its node"
        for member in cluster.members
        for bundle in member.owned()
        if (node := nodes.get(path_of(bundle))) is None or node.owner != member.session_id
    ]
