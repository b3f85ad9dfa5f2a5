"""Which broker serves a topic: the question that topics, lookups, the admin API and the transaction
coordinators ask.

A namespace's topics are divided into bundles by the hash of their names, and a bundle is served by
one broker at a time. A broker that is alone serves everything (`ALONE`) and pays nothing for the
question. The question comes up when a topic is first used, never for a message.

Source: Apache Pulsar's NamespaceBundle and OwnershipCache.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from pybroker.base.errors import NotAllowed, ServiceNotReady
from pybroker.base.listeners import Listeners
from pybroker.base.names import COORDINATOR_ASSIGN, KAFKA_OFFSETS_PREFIX, SEGMENT, TopicName

LAST_HASH: Final = 0xFFFFFFFF


class Bundle(NamedTuple):
    """The topics of a namespace whose hash is from `low` to `high`: without `high` itself, except
    in the last bundle.
    """

    namespace: str  # tenant/namespace
    low: int
    high: int

    def holds(self, name: TopicName) -> bool:
        if name.namespace_name != self.namespace:
            return False
        at = hash_of(name)
        return self.low <= at < self.high or at == self.high == LAST_HASH

    def is_within(self, other: "Bundle") -> bool:
        is_same = other.namespace == self.namespace
        return is_same and other.low <= self.low and self.high <= other.high

    @property
    def range(self) -> str:
        return f"0x{self.low:08x}_0x{self.high:08x}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range}"


class BrokerAddress(NamedTuple):
    """A broker's URLs, as clients reach them; empty for what it does not serve."""

    broker_url: str = ""  # pulsar://host:port
    broker_url_tls: str = ""
    http_url: str = ""
    http_url_tls: str = ""


class KafkaAddress(NamedTuple):
    """Where Kafka's clients reach a broker; empty for what it does not serve."""

    url: str = ""  # kafka://host:port
    url_tls: str = ""


NO_KAFKA: Final = KafkaAddress()


class OtherOwner(NamedTuple):
    """Another broker, for a client's lookup."""

    address: BrokerAddress
    listeners: Listeners  # its advertised listeners
    serves: bool  # False: no broker serves the topic yet; this one takes it on request


# Called when a bundle was acquired: its topics may be loaded from now on.
OnAcquired = Callable[[Bundle], None]
# Called when a bundle is given up: `owns` is already False. When this returns, nothing of the
# bundle is in use.
OnReleased = Callable[[Bundle], Awaitable[None]]


class Ownership(Protocol):
    def owns(self, name: TopicName) -> bool:
        """Whether this broker serves the topic now. This can end at every await; then `OnReleased`
        is called, unless the session is lost, which ends the process.
        """
        ...

    async def owner_of(self, name: TopicName) -> BrokerAddress | None:
        """The broker that serves the topic; None: this one, which takes the topic's bundle if
        no broker has it and this one should. `owns` is then true unless it was lost since.

        If no broker has the bundle and another one should take it, that one is returned.
        Raises ServiceNotReady if it cannot be known now: ask again.
        """
        ...

    async def lookup(self, name: TopicName, authoritative: bool) -> OtherOwner | None:
        """Like `owner_of`, for a client. `authoritative`: another broker has sent the client here,
        so this one takes the bundle if no broker has it.
        """
        ...

    async def range_of(self, name: TopicName) -> str:
        """The range of the topic's bundle, `0x…_0x…`. Raises ServiceNotReady."""
        ...

    async def refreshed(self) -> None:
        """Return when this broker's metadata shows what others wrote before the call. Raises
        ServiceNotReady.
        """
        ...

    def on_change(self, acquired: OnAcquired, released: OnReleased) -> None:
        """Both are called on the loop, in the order in which they were added."""
        ...


class Alone:
    """The ownership of a broker without others."""

    def owns(self, name: TopicName) -> bool:
        return True

    async def owner_of(self, name: TopicName) -> BrokerAddress | None:
        return None

    async def lookup(self, name: TopicName, authoritative: bool) -> OtherOwner | None:
        return None

    async def range_of(self, name: TopicName) -> str:
        return Bundle(name.namespace_name, 0, LAST_HASH).range

    async def refreshed(self) -> None:
        """There are no other brokers."""

    def on_change(self, acquired: OnAcquired, released: OnReleased) -> None:
        """Nothing ever changes."""


ALONE: Final = Alone()


class NotServedHere(ServiceNotReady):
    """Clients look the topic up again; the admin API redirects to `name`'s owner."""

    def __init__(self, name: TopicName) -> None:
        super().__init__(
            f"Namespace bundle for topic ({name}) not served by this instance", "redo the lookup"
        )
        self.name = name


class BeingReleased(ServiceNotReady):
    """The bundle will soon be free. Clients look it up again; brokers ask again."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(f"{bundle} is being released; look it up again")


def check_owned(ownership: Ownership, name: TopicName) -> None:
    """Raises NotServedHere if another broker serves the topic."""
    if not ownership.owns(name):
        raise NotServedHere(name)


async def take(ownership: Ownership, name: TopicName) -> None:
    """On return, this broker serves the topic. Raises NotServedHere: another one serves it, or
    should; ServiceNotReady.
    """
    if not ownership.owns(name) and await ownership.owner_of(name) is not None:
        raise NotServedHere(name)
    check_owned(ownership, name)


class OnSeveralBrokers(NotAllowed):
    """The topics of the operation are served by several brokers."""

    http_status = 412


async def take_all(ownership: Ownership, names: Iterable[TopicName]) -> None:
    """On return, this broker serves all of these. Raises OnSeveralBrokers, ServiceNotReady."""
    for name in () if ownership is ALONE else names:
        if (owner := await ownership.owner_of(name)) is not None:
            raise OnSeveralBrokers(
                f"{name} is served by {owner.broker_url or owner.broker_url_tls}, and this works "
                "only where one broker serves all topics concerned: stop the others meanwhile"
            )


def hash_of(name: TopicName) -> int:
    """The hash that places a topic in a bundle. Each partition has its own, but all segments of a
    scalable topic are in its bundle: so a change of its layout concerns one broker only. A log of
    Kafka's groups and producers is where the transaction coordinator of its number is.
    """
    if name.domain == SEGMENT:
        name = name.partitioned_name
    elif name.local.startswith(KAFKA_OFFSETS_PREFIX) and name.partition >= 0:
        name = COORDINATOR_ASSIGN.partition_at(name.partition)
    return crc32(str(name).encode())
