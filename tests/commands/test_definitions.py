"""Definitions go out of one broker and into another one, which is then the same."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pybroker.testing
from pybroker.commands.admin.definitions import checked, definitions_of, steps
from pybroker.commands.admin.main import main
from pybroker.commands.admin.rest import Rest
from pybroker.testing import RunningBroker

# A value of each kind of policy, by its name in the file.
POLICIES: dict[str, Any] = {
    "retention": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10},
    "messageTTL": 3600,
    "antiAffinity": "apart",
    "compactionThreshold": 1000,
    "encryptionRequired": True,
    "subscriptionTypesEnabled": ["Shared", "Key_Shared"],
    "schemaCompatibilityStrategy": "FULL",
    "transactionLimits": {"maxOpenTransactions": 10},
    "transactionBuffer": "commitOrder",
    "properties": {"team": "red"},
    "resourcegroup": "batch",
    "backlogQuota": {
        "destination_storage": {
            "limit": 1000,
            "limitSize": 1000,
            "limitTime": -1,
            "policy": "consumer_backlog_eviction",
        },
        "message_age": {
            "limit": -1,
            "limitSize": -1,
            "limitTime": 60,
            "policy": "producer_exception",
        },
    },
}


@pytest.fixture
def source() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as broker:
        yield broker


@pytest.fixture
def target() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as broker:
        yield broker


def wanted(**policies: Any) -> dict[str, Any]:
    return {
        "definitions": 1,
        "tenants": {"acme": {"adminRoles": ["eve", "bob"], "allowedClusters": ["standalone"]}},
        "namespaces": {"acme/shop": {"bundles": 4, "policies": policies}},
    }


def bring_in(broker: RunningBroker, found: dict[str, Any], folder: Path, *more: str) -> int:
    file = folder / "definitions.json"
    file.write_text(json.dumps(found))
    return main(["--admin-url", broker.admin_url, "definitions", "import", "-f", str(file), *more])


def test_what_is_exported_of_one_broker_makes_another_the_same(
    source: RunningBroker, target: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for broker in (source, target):
        Rest(broker.admin_url).ask("PUT", "resourcegroups/batch", {})
    assert bring_in(source, wanted(**POLICIES), tmp_path) == 0, capsys.readouterr().err
    file = tmp_path / "exported.json"
    command = ["--admin-url", source.admin_url, "definitions", "export", "-o", str(file)]
    assert main(command) == 0
    exported = json.loads(file.read_text())
    shop = exported["namespaces"]["acme/shop"]
    assert shop["bundles"] == 1, "one broker has one"
    assert {name: shop["policies"].get(name) for name in POLICIES} == POLICIES
    assert bring_in(target, exported, tmp_path) == 0
    assert definitions_of(Rest(target.admin_url)) == exported
    assert list(steps(Rest(target.admin_url), exported)) == [], "a second import changes nothing"


def test_a_dry_run_tells_every_step_and_takes_none(
    target: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = wanted(messageTTL=60, retention=POLICIES["retention"])
    before = definitions_of(Rest(target.admin_url))
    capsys.readouterr()
    assert bring_in(target, found, tmp_path, "--dry-run") == 0
    assert json.loads(capsys.readouterr().out) == [
        "create tenant acme",
        "create namespace acme/shop",
        "set messageTTL of acme/shop",
        "set retention of acme/shop",
    ]
    assert definitions_of(Rest(target.admin_url)) == before


def test_what_the_file_does_not_name_stays(target: RunningBroker, tmp_path: Path) -> None:
    assert bring_in(target, wanted(messageTTL=60), tmp_path) == 0
    found = wanted(retention=POLICIES["retention"])
    found["tenants"]["acme"]["adminRoles"] = ["eve"]
    assert bring_in(target, found, tmp_path) == 0
    there = definitions_of(Rest(target.admin_url))
    assert there["tenants"]["acme"]["adminRoles"] == ["eve"]
    policies = there["namespaces"]["acme/shop"]["policies"]
    assert policies["messageTTL"] == 60 and policies["retention"] == POLICIES["retention"]


def test_an_error_says_how_far_it_came_and_the_next_import_goes_on(
    target: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bring_in(target, wanted(messageTTL=60, retention="for ever"), tmp_path) == 1
    said = capsys.readouterr().err
    assert "set retention of acme/shop: HTTP 4" in said
    assert "3 changes were made before" in said
    assert bring_in(target, wanted(messageTTL=60), tmp_path) == 0
    assert json.loads(capsys.readouterr().out or "[]") == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], "none of definitions"),
        ({"definitions": 2}, "none of definitions"),
        ({"definitions": 1, "tenant": {}}, "the file has tenant"),
        ({"definitions": 1, "tenants": []}, "tenants must be an object"),
        ({"definitions": 1, "tenants": {"a": {"adminRoles": "eve"}}}, "a list of texts"),
        ({"definitions": 1, "namespaces": {"a": {}}}, "not a namespace"),
        ({"definitions": 1, "namespaces": {"a/b": {"policy": {}}}}, "a/b has policy"),
        ({"definitions": 1, "namespaces": {"a/b": {"policies": {"ttl": 1}}}}, "has ttl"),
        ({"definitions": 1, "namespaces": {"a/b": {"policies": {"backlogQuota": 1}}}}, "object"),
        ({"definitions": 1, "namespaces": {"a/b": {"permissions": {"r": 1}}}}, "list of texts"),
    ],
)
def test_a_file_is_checked_before_anything_is_changed(found: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        checked(found)


@pytest.mark.parametrize(
    ("text", "said"), [("{", "is not JSON"), ("[" * 100_000, "nested too deeply"), (None, "read")]
)
def test_a_file_that_cannot_be_read_says_why(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    if text is not None:
        file.write_text(text)
    assert (
        main(["--admin-url", "http://127.0.0.1:1", "definitions", "import", "-f", str(file)]) == 1
    )
    assert said in capsys.readouterr().err
