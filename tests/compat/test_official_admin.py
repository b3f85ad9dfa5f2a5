"""Every command of the program pulsar-admin, against the broker."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from admin_tour import ELSEWHERE, SUPER_USER, Tour, Visit
from credentials import TOKEN_SETTINGS, token
from official_admin import Said, pulsar_admin
from watched_http import watched_answers

import pybroker.testing

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.feature("admin client")]

SETTINGS: Final = TOKEN_SETTINGS | {
    "authorization_enabled": True,
    "super_user_roles": (SUPER_USER,),
    # Even on a slow machine no topic is deleted as unused for a minute.
    "broker_delete_inactive_topics_enabled": False,
}
# Refused commands, with the reasons.
REFUSED: Final = {
    # In use, or this broker's own.
    ("tenants", "delete"): "still has namespaces",
    ("properties", "delete"): "still has namespaces",
    ("namespaces", "delete"): "topics; delete them first or use force",
    ("clusters", "delete"): "this broker's own",
    ("brokers", "shutdown"): "embedded in another process",
    # Not meaningful for one broker, or not supported.
    ("brokers", "update-dynamic-config"): "configuration file",
    ("brokers", "delete-dynamic-config"): "configuration file",
    ("clusters", "update-cluster-migration"): "migration is not supported",
    ("namespaces", "split-bundle"): "cannot be split",
    ("topics", "offload"): "Offloading is not supported",
    # The program itself refuses: there is no such jar.
    ("schemas", "extract"): "ClassNotFoundException",
}
# The program shows something else than the answer.
OTHERWISE: Final = {
    ("topicPolicies", "get-dispatcher-pause-on-ack-state-persistent"),  # prints its future
    ("ns-isolation-policy", "brokers"),  # prints the list's members
    ("broker-stats", "monitoring-metrics"),
    ("persistent", "info-internal"),  # text within JSON
    ("topics", "get-shadow-source"),  # one of the properties
    ("schemas", "get"),  # an object of its own, built from parts of the answer
    # a JVM's memory, and a machine's load: pybroker has no JVM, and no brokers to compare with
    *(("broker-stats", "allocator-stats"), ("broker-stats", "load-report")),
}
# Fields that the program adds, because this broker's answer has no values for them.
ADDED: Final = {
    # a position is only a ledger and an entry; the place of a schema is internal
    *("batchIndex", "batchSize", "ledgerId", "entryId"),
    # not counted
    *("messageAckRate", "chunkedMessageRate", "msgInReplay", "totalAbortedTransactions"),
    *("nonContiguousDeletedMessagesRangesSerializedSize", "drainingHashesClearedTotal"),
    # of non-persistent topics
    *("drainingHashesCount", "drainingHashesUnackedMessages", "oldestBacklogMessageAgeSeconds"),
    # recovery ends before clients are served; snapshots are metadata records
    *("recoverStartTime", "recoverEndTime", "lastSnapshotTimestamps"),
    # non-persistent topics have no ledger
    *("entriesAddedCounter", "waitingCursorsCount", "pendingAddEntriesCount"),
    # of very old versions
    *("clusterDispatchRate", "latency_stats_sample_rate", "clusterThatCanDeleteNamespace"),
}


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Visit]]:
    secret = token(SUPER_USER)
    with (
        watched_answers() as answers,
        pybroker.testing.broker(http=True, **SETTINGS) as broker,
        pulsar_admin(broker.admin_url, broker.service_url, secret) as admin,
    ):
        tour = Tour(broker, admin, answers, tmp_path_factory.mktemp("tour"))
        yield list(tour.visits())


def test_it_has_a_word_for_everything(visits: list[Visit]) -> None:
    groups = {group for group, _ in (visit.command for visit in visits)}
    assert len(visits) > 480 and not groups & ELSEWHERE


def test_no_command_asks_in_vain_and_none_breaks_the_broker(visits: list[Visit]) -> None:
    wrong = [
        (visit.words, str(answer))
        for visit in visits
        for answer in visit.answers
        if answer.status in (404, 405) or answer.status >= 500
    ]
    assert not wrong


def test_what_is_refused_is_refused_with_a_reason(visits: list[Visit]) -> None:
    failed = {visit.command: visit.said for visit in visits if visit.said.code != 0}
    assert {command: said.err for command, said in failed.items() if command not in REFUSED} == {}
    for command, reason in REFUSED.items():
        assert reason in failed[command].err


def test_the_program_shows_what_it_was_told(visits: list[Visit]) -> None:
    """The program's own objects neither lose nor change anything of the answer."""
    compared = [(visit, *both) for visit in visits if (both := _shown_and_told(visit)) is not None]
    assert len(compared) > 100
    differing = {
        " ".join(visit.command): found
        for visit, shown, told in compared
        if visit.command not in OTHERWISE and (found := sorted(_differing(shown, told, "")))
    }
    assert differing == {}


def test_pybroker_admin_shows_the_same(visits: list[Visit]) -> None:
    compared = [visit for visit in visits if visit.ours is not None]
    assert len(compared) > 100
    differing = {
        " ".join(visit.command): found
        for visit in compared
        if visit.command not in OTHERWISE
        and (found := sorted(_differing(json.loads(visit.said.out), _json(visit.ours), "")))
    }
    assert differing == {}


def _json(said: Said | None) -> Any:
    """The output as JSON; other output is a text."""
    assert said is not None and said.code == 0, said
    try:
        return json.loads(said.out)
    except ValueError:
        return said.out.rstrip("\n") or None


def _shown_and_told(visit: Visit) -> tuple[Any, Any] | None:
    """The program's output and the broker's only answer; None if either is not JSON."""
    told = [a for a in visit.answers if (a.method, a.status) == ("GET", 200)]
    try:
        return (json.loads(visit.said.out), json.loads(told[0].body)) if len(told) == 1 else None
    except ValueError:
        return None


def _differing(shown: Any, told: Any, path: str) -> Iterator[str]:
    """Shown values that differ from the answer or are missing in it."""
    if isinstance(shown, dict) and isinstance(told, dict):
        for key in shown.keys() - ADDED:
            if key in told:
                yield from _differing(shown[key], told[key], f"{path}.{key}")
            else:
                yield f"{path}.{key} was not told"
    elif isinstance(shown, list) and isinstance(told, list) and len(shown) == len(told):
        for one, other in zip(_ordered(shown), _ordered(told), strict=True):
            yield from _differing(one, other, f"{path}[]")
    elif shown != told:
        yield f"{path}: {shown!r}, and not {told!r}"


def _ordered(values: list[Any]) -> list[Any]:
    """Sort lists of texts, which are unordered sets."""
    return sorted(values) if all(isinstance(value, str) for value in values) else values
