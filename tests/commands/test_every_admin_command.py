"""Every command of `pybroker admin` once, against a broker with data."""

import contextlib
import io
import json
import re
from collections.abc import Iterator
from typing import Final

import pytest
from admin_words import FLEETING, NAMESPACE, TENANT, TOPIC, WIDE, words_of

import pybroker.testing
from pybroker.client import Client
from pybroker.commands.admin.main import GROUPS, main
from pybroker.testing import RunningBroker

pytestmark = pytest.mark.slow

# Creates what does not exist yet.
PREPARED: Final = (
    f"tenants create {TENANT}",
    f"namespaces create {NAMESPACE}",
    f"topics delete {TOPIC} -f",
    f"topics delete-partitioned-topic {WIDE} -f",
    f"topics create {TOPIC}",
    f"topics create-partitioned-topic {WIDE} -p 2",
    f"topics create {FLEETING}",
    f"scalable-topics create {TOPIC}",
    "resourcegroups create batch",
    "clusters create-failure-domain standalone --domain-name left",
    "ns-isolation-policy set standalone own --namespaces a --primary b "
    "--auto-failover-policy-type min_available --auto-failover-policy-params min_limit=1",
    f"topics create-subscription {TOPIC} -s audit",
    f"topics create-subscription {WIDE} -s audit",
    f"scalable-topics create-subscription {TOPIC} -s audit",
)
# Refused commands, with a part of the message. Configuration is fixed while the broker runs;
# bundles cannot be split, nor data migrated or offloaded; objects in use are not deleted.
REFUSED: Final = {
    ("brokers", "update-dynamic-config"): "configuration file",
    ("brokers", "delete-dynamic-config"): "configuration file",
    ("brokers", "shutdown"): "embedded in another process",
    ("bookies", "get-bookie-rack"): "Bookie address not found",
    ("bookies", "set-bookie-rack"): "not placed by racks",
    ("bookies", "delete-bookie-rack"): "Bookie address not found",
    ("schemas", "extract"): "Java class",
    ("clusters", "create"): "already exists",
    ("clusters", "delete"): "own",
    ("clusters", "update-cluster-migration"): "migration is not supported",
    ("namespaces", "split-bundle"): "cannot be split",
    ("namespaces", "create"): "already exists",
    ("namespaces", "delete"): "topics",
    ("tenants", "create"): "already exists",
    ("tenants", "delete"): "namespaces",
    ("topics", "create"): "already exists",
    ("topics", "create-shadow-topic"): "already exists",
    ("topics", "create-subscription"): "already exists",
    ("topics", "create-partitioned-topic"): "already exists",
    ("persistent", "create-subscription"): "already exists",
    ("persistent", "create-partitioned-topic"): "already exists",
    ("topics", "offload"): "Offloading is not supported",
    ("namespaces", "grant-permission"): "authorizationEnabled",
    ("namespaces", "grant-subscription-permission"): "authorizationEnabled",
    ("topics", "grant-permission"): "authorizationEnabled",
    ("topics", "revoke-permission"): "not set at the topic level",
    ("persistent", "grant-permission"): "authorizationEnabled",
    ("persistent", "revoke-permission"): "not set at the topic level",
    ("scalable-topics", "create"): "already exists",
    ("scalable-topics", "migrate"): "exists already",
    ("scalable-topics", "split-segment"): "There is no segment 7",
    ("scalable-topics", "merge-segments"): "There is no segment 7",
    ("scalable-topics", "rebucket"): "There is no segment 7",
    ("scalable-topics", "grant-permission"): "authorizationEnabled",
    ("scalable-topics", "revoke-permission"): "not set at the topic level",
    ("kafka-groups", "list"): "start it --kafka",
    ("kafka-groups", "get"): "start it --kafka",
    ("kafka-groups", "end-offsets"): "start it --kafka",
    ("definitions", "import"): "none of definitions",
    ("transactions", "transaction-metadata"): "Transaction",
    ("transactions", "abort-transaction"): "Transaction",
    ("transactions", "transaction-in-pending-ack-stats"): "Transaction",
    ("transactions", "pending-ack-internal-stats"): "never taken part",
}


# Commands after which objects must be created again; they run last.
ENDS_SOMETHING: Final = re.compile(
    r"delete|terminate|truncate|unsubscribe|upload|update-partitioned|clear|skip|expire|unload"
)
COMMANDS: Final = sorted(
    ((group, row.name, row.arguments) for group, rows in GROUPS.items() for row in rows),
    key=lambda found: ENDS_SOMETHING.search(found[1]) is not None,
)


class World:
    """All objects that a command may need, in a running broker."""

    def __init__(self, broker: RunningBroker, schema: str) -> None:
        self.url = broker.admin_url
        self._service_url = broker.service_url
        self.schema = schema
        self.ledger = self.segment = ""
        self.stale = True

    def run(self, words: list[str]) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["--admin-url", self.url, *words])
        return code, out.getvalue(), err.getvalue()

    def prepare(self) -> None:
        """Creates missing objects, whatever the earlier commands did."""
        for text in PREPARED:
            self.run(text.split())
        self.run(f"schemas upload {TOPIC} -f {self.schema}".split())
        with Client(self._service_url) as client:
            client.create_producer(TOPIC).send(b"x")
        _, out, _ = self.run(["topics", "stats-internal", TOPIC])
        self.ledger = str(json.loads(out)["ledgers"][-1]["ledgerId"])
        _, out, _ = self.run(["scalable-topics", "stats", TOPIC])
        self.segment = re.findall(r'"(segment://[^"]+)"', out)[0]
        self.stale = False


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    schema = tmp_path_factory.mktemp("schemas") / "schema.json"
    schema.write_text(json.dumps({"type": "BYTES", "schema": "", "properties": {}}))
    # On a slow machine no topic must be deleted as unused.
    kept = {"broker_delete_inactive_topics_enabled": False}
    with pybroker.testing.broker(http=True, **kept) as broker:
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
        "segment": world.segment,
        "--filename": world.schema,
        "--url": address,
        "--broker": address,
    }
    words = words_of(group, command, arguments, known)
    code, out, err = world.run(words)
    if reason := REFUSED.get((group, command)):
        assert (code, reason in err) == (1, True), (words, out, err)
    else:
        assert code == 0, (words, out, err)
