"""A row of topics with their own policies: setting the policies, and loading such topics."""

import json
from http.client import HTTPConnection

from figures import Figure, Target
from idle_topics import subscribe_to_all
from measured_broker import MeasuredBroker
from workload import Bench, Spent, measured

TOPICS = 1000
# Policies by path, with the values to set.
POLICIES: dict[str, object] = {
    "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100},
    "maxProducers": 100,
    "maxConsumers": 100,
    "maxSubscriptionsPerTopic": 10,
    "maxUnackedMessagesOnConsumer": 1000,
    "publishRate": {"publishThrottlingRateInMsg": 10_000},
    "dispatchRate": {"dispatchThrottlingRateInMsg": 10_000},
    "delayedDelivery": {"tickTime": 500, "active": True},
    "inactiveTopicPolicies": {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 600,
        "deleteWhileInactive": True,
    },
    "persistence": {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 0.5,
    },
}


def many_policies(bench: Bench) -> list[Figure]:
    """Memory and loading, compared with the same topics without policies."""
    topics = bench.scaled(TOPICS)
    setting, memory, loading, plain = [], [], [], []
    for _ in range(bench.runs):
        with bench.broker("policies") as broker:
            subscribe_to_all(broker, topics)
            before_mb = broker.resident_mb()
            spent = measured(broker, lambda found=broker: set_policies(found, topics))
            setting.append(spent.cpu_us(topics * len(POLICIES)))
            memory.append(1024 * (broker.resident_mb() - before_mb) / topics)
            loading.append(load(broker, topics).cpu_us(topics))
        with bench.broker("no-policies") as broker:
            subscribe_to_all(broker, topics)
            plain.append(load(broker, topics).cpu_us(topics))
    name = f"{topics:,} topics with {len(POLICIES)} policies each"
    return [
        Figure(f"{name}: setting one, broker CPU", "µs", setting),
        Figure(f"{name}: memory of a topic's", "kB", memory, Target(20)),
        Figure(f"{name}: loading one, broker CPU", "µs", loading),
        Figure(f"{topics:,} topics without: loading one, broker CPU", "µs", plain),
    ]


def set_policies(broker: MeasuredBroker, topics: int) -> None:
    address = broker.admin_url.removeprefix("http://")
    connection = HTTPConnection(address)
    for number in range(topics):
        path = f"/admin/v2/persistent/public/default/an-idle-topic-{number:06d}"
        for policy, value in POLICIES.items():
            body, said = json.dumps(value), {"Content-Type": "application/json"}
            connection.request("POST", f"{path}/{policy}", body, said)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 204:
                raise RuntimeError(f"{policy}: {answer.status} {text.decode()}")
    connection.close()


def load(broker: MeasuredBroker, topics: int) -> Spent:
    """Load all topics after a restart."""
    broker.stop()
    broker.start()
    return measured(broker, lambda: subscribe_to_all(broker, topics))
