"""All pulsar-admin commands, in an order in which each has something to do.

Within a group, commands that create or set something come first, then those that show it, then
those that delete it. Deleted things are recreated before the next command.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Final

import httpx
from admin_words import CLUSTER, NAMESPACE, TENANT, TOPIC, words_of
from credentials import bearer, token
from official_admin import PulsarAdmin, Said
from watched_http import Answer

from pybroker.client import AuthenticationToken, Client, InitialPosition
from pybroker.commands.admin.main import GROUPS
from pybroker.commands.admin.main import main as pybroker_admin
from pybroker.testing import RunningBroker

# Groups for other systems: bookies, functions and connectors, packages, a proxy; documentation.
ELSEWHERE: Final = {
    *("bookies", "functions", "functions-worker", "sources", "sinks", "source", "sink"),
    *("packages", "proxy-stats", "documents"),
}
SUPER_USER: Final = "admin"
PAID: Final = f"persistent://{NAMESPACE}/paid"
_EARLIEST: Final = {"ledgerId": -1, "entryId": -1}
_MAKES: Final = re.compile(r"create|set|grant|upload|enable|scale|update")
_ENDS: Final = re.compile(
    "remove|delete|revoke|disable|clear|unsubscribe|terminate|truncate|skip|partitioned-terminate|"
    "expire|abort|shutdown|split|unload|trim"
)
_ISOLATION: Final = {
    "namespaces": ["a"],
    "primary": ["b"],
    "secondary": [],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "100"},
    },
}
# Path and body that create it; by PUT, or by POST after a `+`.
_WORLD: Final[tuple[tuple[str, Any], ...]] = (
    (f"tenants/{TENANT}", {"adminRoles": [], "allowedClusters": [CLUSTER]}),
    (f"namespaces/{NAMESPACE}", None),
    (f"persistent/{NAMESPACE}/orders", None),
    (f"persistent/{NAMESPACE}/wide/partitions", 2),
    (f"non-persistent/{NAMESPACE}/fleeting", None),
    (f"persistent/{NAMESPACE}/orders/subscription/audit", _EARLIEST),
    (f"persistent/{NAMESPACE}/wide/subscription/audit", _EARLIEST),
    ("resourcegroups/batch", {}),
    (f"+clusters/{CLUSTER}/failureDomains/left", {"brokers": ["b"]}),
    (f"+clusters/{CLUSTER}/namespaceIsolationPolicies/own", _ISOLATION),
)


@dataclass(frozen=True, slots=True)
class Visit:
    words: list[str]
    said: Said
    answers: list[Answer]
    ours: Said | None  # output of `pybroker admin`, for commands that only show JSON

    @property
    def command(self) -> tuple[str, str]:
        return self.words[0], self.words[1]


class Tour:
    def __init__(
        self, broker: RunningBroker, admin: PulsarAdmin, answers: list[Answer], scratch: Path
    ) -> None:
        self._broker, self._admin, self._answers = broker, admin, answers
        base, headers = f"{broker.admin_url}/admin/v2/", bearer(SUPER_USER)
        self._http = httpx.Client(base_url=base, headers=headers, timeout=30)
        self._known: dict[str, str] = {}
        schema = scratch / "schema.json"
        schema.write_text(json.dumps({"type": "BYTES", "schema": "", "properties": {}}))
        address = broker.admin_url.removeprefix("http://")
        self._always = {"--filename": str(schema), "--url": address, "--broker": address}

    def visits(self) -> Iterator[Visit]:
        before = None
        with ExitStack() as parts:
            parts.enter_context(self._http)
            transaction = self._open_transaction(parts)
            for number, (group, command, arguments) in enumerate(self._commands()):
                if (now := (group, phase(command))) != before or now[1] == _LAST:
                    self._prepare()
                before = now
                known = self._known | (transaction if group == "transactions" else {})
                known |= _fresh(group, command, f"fresh-{number}")
                yield self._visit(words_of(group, command, arguments, known))

    def _commands(self) -> list[tuple[str, str, str]]:
        found = [row for row in self._admin.commands() if row[0] not in ELSEWHERE]
        groups = list(dict.fromkeys(group for group, _, _ in found))
        return sorted(found, key=lambda row: (groups.index(row[0]), phase(row[1])))

    def _visit(self, words: list[str]) -> Visit:
        self._answers.clear()
        said = self._admin.run(words)
        answers = list(self._answers)
        return Visit(
            words,
            said,
            answers,
            self._ours(words) if words[0] in GROUPS and _only_looks(said, answers) else None,
        )

    def _ours(self, words: list[str]) -> Said:
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            where = ["--admin-url", self._broker.admin_url, "--token", token(SUPER_USER)]
            code = pybroker_admin([*where, *words])
        return Said(code, out.getvalue(), err.getvalue())

    def _prepare(self) -> None:
        self._make_world()
        if self._orders()["state"] == "Terminated":
            self._http.delete(f"persistent/{NAMESPACE}/orders?force=true")
            self._http.delete(f"persistent/{NAMESPACE}/wide/partitions?force=true")
            self._make_world()
        with self._client() as client:
            client.create_producer(TOPIC).send(b"x")
        ledger = str(self._orders()["ledgers"][-1]["ledgerId"])
        self._known = self._always | {"--ledgerId": ledger}

    def _make_world(self) -> None:
        """Create whatever is missing; requests for existing things are refused."""
        for path, body in _WORLD:
            self._http.request("POST" if path[0] == "+" else "PUT", path.lstrip("+"), json=body)

    def _orders(self) -> Any:
        return self._http.get(f"persistent/{NAMESPACE}/orders/internalStats").json()

    def _client(self, **options: Any) -> Client:
        who = AuthenticationToken(token(SUPER_USER))
        return Client(self._broker.service_url, authentication=who, **options)

    def _open_transaction(self, parts: ExitStack) -> dict[str, str]:
        """Open a transaction with a message and an acknowledgement; returns its ids and places."""
        self._make_world()
        client = parts.enter_context(self._client(enable_transaction=True))
        producer = client.create_producer(PAID)
        consumer = client.subscribe(PAID, "audit", initial_position=InitialPosition.Earliest)
        producer.send(b"x")
        transaction = client.new_transaction(timeout_ms=600_000)
        producer.send(b"y", txn=transaction)
        consumer.acknowledge(received := consumer.receive(), txn=transaction)
        most, least = transaction.txn_id
        position = received.message_id()
        return {
            "--topic": PAID,
            "--most-sig-bits": str(most),
            "--least-sig-bits": str(least),
            "--ledger-id": str(position.ledger_id()),
            "--entry-id": str(position.entry_id()),
        }


_LAST: Final = 2


def phase(command: str) -> int:
    return 0 if _MAKES.match(command) else _LAST if _ENDS.match(command) else 1


def _only_looks(said: Said, answers: list[Answer]) -> bool:
    """Whether the command only shows things, which do not change by themselves."""
    if not answers or any(a.method != "GET" or "tats" in a.path for a in answers):
        return False
    try:
        return json.loads(said.out) is not None
    except ValueError:
        return False


def _fresh(group: str, command: str, name: str) -> dict[str, str]:
    """New names, for commands that create something."""
    if not re.fullmatch("create(-partitioned-topic|-subscription|-shadow-topic)?", command):
        return {}
    if command == "create-subscription":
        return {"--subscription": name}
    domain = "non-persistent" if group == "non-persistent" else "persistent"
    return {
        "tenant": name,
        "clusterName": name,
        "namespaceName": f"{TENANT}/{name}",
        "resourceGroupName": name,
        "topicName": f"{domain}://{NAMESPACE}/{name}",
    }
