"""Every command of `pybroker admin` once, against a broker that has something to show."""

import contextlib
import io
import json
import re
from collections.abc import Iterator
from typing import Final

import pytest

import pybroker.testing
from pybroker.client import Client
from pybroker.commands.admin import grammar
from pybroker.commands.admin.main import GROUPS, main
from pybroker.testing import RunningBroker

CLUSTER, TENANT, NAMESPACE = "standalone", "acme", "acme/shop"
TOPIC, WIDE = f"persistent://{NAMESPACE}/orders", f"persistent://{NAMESPACE}/wide"
PLACES: Final = {
    "topicName": TOPIC,
    "topic": TOPIC,
    "namespaceName": NAMESPACE,
    "namespace": NAMESPACE,
    "tenant": TENANT,
    "cluster": CLUSTER,
    "clusterName": CLUSTER,
    "policyName": "own",
    "resourceGroupName": "batch",
    "allocatorName": "default",
}
OPTIONS: Final = {
    "--bundle": "0x00000000_0xffffffff",
    "--domain-name": "left",
    "--broker-list": "b1,b2",
    "--auto-failover-policy-params": "min_limit=1",
    "--actions": "produce,consume",
    "--types": "Shared,Failover",
    "--clusters": CLUSTER,
    "--cluster": CLUSTER,
    "--replicas": "16",
    "--partitions": "3",
    "--count": "1",
    "--size": "100M",
    "--time": "100m",
    "--coordinator-id": "0",
    "--most-sig-bits": "0",
    "--role": "clerk",
    "--entryId": "0",
    "--peer-clusters": "",
    "--resource-group-name": "batch",
    "--namespace": NAMESPACE,
    "--subscription": "audit",
    "--sub": "audit",
    "--sub-name": "audit",
    "--subscription-name": "audit",
    "--topic": TOPIC,
    "--messageId": "earliest",
    "--datetime": "2026-01-01T00:00:00+00:00",
    "--policy": "consumer_backlog_eviction",
    "--strategy": "BACKWARD",
    "--delete-mode": "delete_when_no_subscriptions",
    "--subscription-auth-mode": "Prefix",
    "--properties": "a=b",
    "--property": "a=b",
    "--initialPosition": "earliest",
    "--topics": TOPIC,
}
# What has to be said though each option alone may be left out, and other places.
SAID: Final = {
    ("topics", "reset-cursor"): ["--time", "1h"],
    ("persistent", "reset-cursor"): ["--time", "1h"],
    ("topics", "expire-messages"): ["-t", "1h"],
    ("persistent", "expire-messages"): ["-t", "1h"],
    ("topics", "update-subscription-properties"): ["--property", "a=b"],
    ("namespaces", "clear-backlog"): ["--force"],
    ("namespaces", "set-schema-compatibility-strategy"): ["--compatibility", "BACKWARD"],
    ("namespaces", "set-schema-autoupdate-strategy"): ["--compatibility", "Full"],
    ("namespaces", "get-subscription-permission"): [],
    ("schemas", "upload"): [],
}
pytestmark = pytest.mark.slow

# Where it is not there already.
PREPARED: Final = (
    f"tenants create {TENANT}",
    f"namespaces create {NAMESPACE}",
    f"topics delete {TOPIC} -f",
    f"topics delete-partitioned-topic {WIDE} -f",
    f"topics create {TOPIC}",
    f"topics create-partitioned-topic {WIDE} -p 2",
    "resourcegroups create batch",
    "clusters create-failure-domain standalone --domain-name left",
    "ns-isolation-policy set standalone own --namespaces a --primary b "
    "--auto-failover-policy-type min_available --auto-failover-policy-params min_limit=1",
    f"topics create-subscription {TOPIC} -s audit",
    f"topics create-subscription {WIDE} -s audit",
)
ON_WIDE: Final = re.compile(r"partitioned|missed-partitions")
# Refused, and with what: nothing is configured while it runs, nothing split, migrated or offloaded;
# what is in use does not go.
REFUSED: Final = {
    ("brokers", "update-dynamic-config"): "configuration file",
    ("brokers", "delete-dynamic-config"): "configuration file",
    ("brokers", "shutdown"): "within another process",
    ("clusters", "create"): "already exists",
    ("clusters", "delete"): "own",
    ("clusters", "update-cluster-migration"): "migrates no cluster",
    ("namespaces", "split-bundle"): "not to be split",
    ("namespaces", "create"): "already exists",
    ("namespaces", "delete"): "topics",
    ("tenants", "create"): "already exists",
    ("tenants", "delete"): "namespaces",
    ("topics", "create"): "already exists",
    ("topics", "create-subscription"): "already exists",
    ("topics", "create-partitioned-topic"): "already exists",
    ("persistent", "create-subscription"): "already exists",
    ("persistent", "create-partitioned-topic"): "already exists",
    ("non-persistent", "create-partitioned-topic"): "already exists",
    ("topics", "offload"): "no offloader",
    ("namespaces", "grant-permission"): "authorizationEnabled",
    ("namespaces", "grant-subscription-permission"): "authorizationEnabled",
    ("topics", "grant-permission"): "authorizationEnabled",
    ("topics", "revoke-permission"): "not set at the topic level",
    ("persistent", "grant-permission"): "authorizationEnabled",
    ("persistent", "revoke-permission"): "not set at the topic level",
    ("transactions", "transaction-metadata"): "Transaction",
    ("transactions", "abort-transaction"): "Transaction",
    ("transactions", "transaction-in-pending-ack-stats"): "Transaction",
    ("transactions", "pending-ack-internal-stats"): "never saw",
}


def value_of(name: str, kind: str | None) -> list[str]:
    if kind is None:
        return []
    value = OPTIONS.get(name, "100")
    return ["100" if kind == "int" and not value.isdigit() else value]


def words_of(group: str, command: str, arguments: str) -> list[str]:
    """The command's, with everything said that must be."""
    words = [group, command]
    for part in grammar._PART.finditer(arguments):
        optional, place, names = (
            part[1] is not None,
            part["place"],
            (part["names"] or "").split("|"),
        )
        if place is not None:
            words.append(
                WIDE if place == "topicName" and ON_WIDE.search(command) else PLACES[place]
            )
        elif "--disable" in names or "--disable-delete-while-inactive" in names:
            words.append(max(names, key=len))
        elif not optional:
            name = max(names, key=len)
            words += [name, *value_of(name, part["type"])]
    return words + SAID.get((group, command), [])


# What such a command is about has to be made again; those come last.
ENDS_SOMETHING: Final = re.compile(
    r"delete|terminate|truncate|unsubscribe|upload|update-partitioned|clear|skip|expire"
)
COMMANDS: Final = sorted(
    ((group, row.name, row.arguments) for group, rows in GROUPS.items() for row in rows),
    key=lambda found: ENDS_SOMETHING.search(found[1]) is not None,
)


class World:
    """All that a command may be about, in a running broker."""

    def __init__(self, broker: RunningBroker, schema: str) -> None:
        self.url = broker.admin_url
        self._service_url = broker.service_url
        self.schema = schema
        self.ledger = ""
        self.stale = True

    def run(self, words: list[str]) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["--admin-url", self.url, *words])
        return code, out.getvalue(), err.getvalue()

    def prepare(self) -> None:
        """Make what is not there, whatever the commands before did."""
        for text in PREPARED:
            self.run(text.split())
        self.run(f"schemas upload {TOPIC} -f {self.schema}".split())
        with Client(self._service_url) as client:
            client.create_producer(TOPIC).send(b"x")
        _, out, _ = self.run(["topics", "stats-internal", TOPIC])
        self.ledger = str(json.loads(out)["ledgers"][-1]["ledgerId"])
        self.stale = False


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    schema = tmp_path_factory.mktemp("schemas") / "schema.json"
    schema.write_text(json.dumps({"type": "BYTES", "schema": "", "properties": {}}))
    with pybroker.testing.broker(http=True) as broker:
        yield World(broker, str(schema))


@pytest.mark.parametrize(
    ("group", "command", "arguments"), COMMANDS, ids=[f"{g}-{c}" for g, c, _ in COMMANDS]
)
def test_a_command_does_what_it_says_or_says_why_not(
    world: World, group: str, command: str, arguments: str
) -> None:
    if world.stale:
        world.prepare()
    world.stale = ENDS_SOMETHING.search(command) is not None
    address = world.url.removeprefix("http://")
    known = {
        "--ledgerId": world.ledger,
        "--filename": world.schema,
        "--url": address,
        "--broker": address,
    }
    words = words_of(group, command, arguments)
    for name in known.keys() & set(words):
        words[words.index(name) + 1] = known[name]
    code, out, err = world.run(words)
    if reason := REFUSED.get((group, command)):
        assert (code, reason in err) == (1, True), (words, out, err)
    else:
        assert code == 0, (words, out, err)
