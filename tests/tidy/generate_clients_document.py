"""Writes the tables of docs/clients.md: which feature of which official client a test shows.

A test in Python says it with `@pytest.mark.feature("name", …)`, and its client by its file's name;
one in another language with `Feature: name, …` in a comment above it. They are read here, not run.
The page's end is written by hand, and kept.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
COMPAT: Final = ROOT / "tests" / "compat"
sys.path += [str(COMPAT), str(ROOT / "tests" / "support")]

from official_go import SOURCES, GoTest, go_tests  # noqa: E402
from official_node import node_tests  # noqa: E402
from official_rust import rust_tests  # noqa: E402

DOCUMENT: Final = ROOT / "docs/clients.md"
CLIENTS: Final = ("Python", "Java", "Go")
_OTHER_FILES: Final = {"test_official_admin.py": "Java", "test_official_flink.py": "Flink"}
# Other people's, with less of the protocol: only what a test shows is listed.
OTHERS: Final = {
    "Rust": "Rust: the crate [pulsar](https://crates.io/crates/pulsar)",
    "JavaScript": "JavaScript: [pulsar-flex](https://www.npmjs.com/package/pulsar-flex)",
    "Flink": "[Flink's connector](https://github.com/apache/flink-connector-pulsar)",
}

FEATURES: Final = {
    "Subscriptions": (
        "exclusive",
        "failover",
        "shared",
        "key_shared",
        "sticky hash ranges",
        "priority levels",
        "several topics",
        "pattern subscription",
        "unsubscribing",
    ),
    "Messages": (
        "keys and properties",
        "batches",
        "chunks",
        "compression",
        "encryption",
        "broker entry metadata",
        "delayed delivery",
        "batch receive",
    ),
    "Acknowledgements": (
        "negative acknowledgement",
        "cumulative acknowledgement",
        "batch index acknowledgement",
        "acknowledgement receipts",
        "unacknowledged messages come again after a time",
        "dead letter topic",
        "retry topic",
    ),
    "Positions": (
        "readers",
        "seek to a message",
        "seek to a time",
        "last message id",
    ),
    "Topics": (
        "partitioned topics",
        "non-persistent topics",
        "terminated topics",
        "compaction",
        "table view",
        "deduplication",
        "producer access modes",
        "metadata of producers and consumers",
        "restarts of the broker",
    ),
    "Schemas": (
        "schemas of single values",
        "JSON schema",
        "Avro schema",
        "Protobuf schema",
        "key and value",
        "any schema, by the topic",
        "schema evolution",
    ),
    "Transactions": ("transactions",),
    "Security": (
        "login by token",
        "login by password",
        "login by certificate",
        "token renewed while connected",
        "permission revoked while connected",
    ),
    "Administration": ("admin client",),
}
# What a client does not have, or cannot be shown here.
ABSENT: Final = {
    ("priority levels", "Python"): "it has none",
    ("priority levels", "Go"): "it has none",
    ("broker entry metadata", "Python"): "it does not show it",
    ("batch receive", "Go"): "it has none; a channel",
    ("acknowledgement receipts", "Python"): "it does not ask for them",
    ("unacknowledged messages come again after a time", "Go"): "it has none",
    ("retry topic", "Python"): "it has none",
    ("Protobuf schema", "Python"): "it needs classes that protoc made; not shown",
    ("Protobuf schema", "Java"): "it needs classes that protoc made; not shown",
    ("key and value", "Python"): "it has none",
    ("key and value", "Go"): "it has none",
    ("any schema, by the topic", "Python"): "it has none",
    ("any schema, by the topic", "Go"): "it has none",
    ("transactions", "Python"): "it has none; `pybroker.client` has",
    ("admin client", "Python"): "it has none; `pybroker admin` is one",
}
_BY_HAND: Final = "## What to know of them"


def shown() -> dict[tuple[str, str], list[str]]:
    """Tests by feature and client."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in sorted(COMPAT.glob("test_*.py")):
        if client := _client_of(path.name):
            for feature in _marked(path):
                found[feature, client].append(path.name)
    for test in go_declarations():
        for feature in test.features:
            found[feature, "Go"].append(test.name)
    for client, tests in (("Rust", rust_tests()), ("JavaScript", node_tests())):
        for test in tests:
            for feature in test.features:
                found[feature, client].append(test.name)
    return found


def _client_of(name: str) -> str | None:
    by_name = next(
        (each for each in CLIENTS if name.startswith(f"test_official_{each.lower()}")), None
    )
    return _OTHER_FILES.get(name, by_name)


def _marked(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.feature":
            for argument in node.args:
                yield ast.literal_eval(argument)


def go_declarations() -> list[GoTest]:
    return [test for source in sorted(SOURCES.glob("*_test.go")) for test in go_tests(source)]


def document() -> str:
    found = shown()
    lines = [
        "# Official clients, feature by feature",
        "",
        "A ✓ is a test of `make test`, in [tests/compat](../tests/compat): the official client",
        "as it is, against this broker. A – means that the client does not have it, or that no",
        "test shows it.",
        "`make clients` writes this page from what the tests say of themselves.",
        "",
    ]
    for group, features in FEATURES.items():
        lines += [f"## {group}", "", f"| | {' | '.join(CLIENTS)} |", "|---|---|---|---|"]
        for feature in features:
            lines.append(
                f"| {feature} | {' | '.join(_cell(found, feature, each) for each in CLIENTS)} |"
            )
        lines.append("")
    lines += ["## Other people's clients", "", "| client | what a test shows |", "|---|---|"]
    for client, title in OTHERS.items():
        has = [each for group in FEATURES.values() for each in group if (each, client) in found]
        lines.append(f"| {title} | {', '.join(has)} |")
    lines.append("")
    by_hand = DOCUMENT.read_text().partition(_BY_HAND)[2]
    return "\n".join(lines) + "\n" + _BY_HAND + by_hand


def _cell(found: dict[tuple[str, str], list[str]], feature: str, client: str) -> str:
    if (feature, client) in found:
        return "✓"
    return f"– {ABSENT[feature, client]}" if (feature, client) in ABSENT else "?"


if __name__ == "__main__":
    DOCUMENT.write_text(document())
