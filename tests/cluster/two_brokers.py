"""Two brokers with HTTP, and a topic with partitions on both."""

from rest import Rest
from txn_cluster import TxnBroker, TxnCluster

from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import Bundle

ORDERS = "v2/persistent/public/default/orders"
PARTITIONS = 8
SHOP = "public/shop"


class TwoBrokers:
    """Two brokers and a topic with eight partitions; each broker serves some of them."""

    def __init__(self, seed: int) -> None:
        self.cluster = TxnCluster(seed, serves_http=True)
        self.one, self.two = self.cluster.start("one"), self.cluster.start("two")
        self.rest = Rest(self.cluster, self.one)
        self.other_rest = Rest(self.cluster, self.two)
        self.rest.do("PUT", f"{ORDERS}/partitions", b"%d" % PARTITIONS)
        self.names = [
            TopicName.parse("orders").partition_at(number) for number in range(PARTITIONS)
        ]
        for number, name in enumerate(self.names):
            self.cluster.take((self.one, self.two)[number % 2], name)

    def owner(self, name: TopicName) -> TxnBroker:
        return next(each for each in (self.one, self.two) if each.ownership.owns(name))

    def publish(self, messages: int = 1) -> None:
        for name in self.names:
            for _ in range(messages):
                self.cluster.call(self.cluster.send(self.owner(name), str(name), b"order"))


def bundles_of(brokers: TwoBrokers, namespace: str) -> list[Bundle]:
    both = (brokers.one, brokers.two)
    return [b for each in both for b in each.ownership.owned() if b.namespace == namespace]
