"""Every command of pulsar-admin, the program itself, against the broker."""

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
    # However slow the machine is, no topic goes because nobody has used it for a minute.
    "broker_delete_inactive_topics_enabled": False,
}
# What is refused, and why.
REFUSED: Final = {
    # It is in use, or this broker's own.
    ("tenants", "delete"): "still has namespaces",
    ("properties", "delete"): "still has namespaces",
    ("namespaces", "delete"): "topics; delete them first or use force",
    ("clusters", "delete"): "this broker's own",
    ("brokers", "shutdown"): "embedded in another process",
    # It has no meaning for one broker, or nothing to do it with.
    ("brokers", "update-dynamic-config"): "configuration file",
    ("brokers", "delete-dynamic-config"): "configuration file",
    ("clusters", "update-cluster-migration"): "migration is not supported",
    ("namespaces", "split-bundle"): "cannot be split",
    ("topics", "offload"): "Offloading is not supported",
    # The program refuses by itself: there is no such jar.
    ("schemas", "extract"): "ClassNotFoundException",
}
# What the program shows is not what it was told: its own doing.
OTHERWISE: Final = {
    ("topicPolicies", "get-dispatcher-pause-on-ack-state-persistent"),  # prints its future
    ("ns-isolation-policy", "brokers"),  # prints the list's members
    ("broker-stats", "monitoring-metrics"),
    ("persistent", "info-internal"),  # text within JSON
    ("topics", "get-shadow-source"),  # one of the properties
    ("schemas", "get"),  # its own object, from the answer's parts
    # a JVM's memory, and a machine's load: there is no JVM, and nobody to compare with
    *(("broker-stats", "allocator-stats"), ("broker-stats", "load-report")),
}
# Fields that the program adds by itself, for this broker has nothing to say there.
ADDED: Final = {
    # a position is a ledger and an entry; where a schema lies is the broker's own affair
    *("batchIndex", "batchSize", "ledgerId", "entryId"),
    # not counted
    *("messageAckRate", "chunkedMessageRate", "msgInReplay", "totalAbortedTransactions"),
    *("nonContiguousDeletedMessagesRangesSerializedSize", "drainingHashesClearedTotal"),
    # of topics that keep nothing
    *("drainingHashesCount", "drainingHashesUnackedMessages", "oldestBacklogMessageAgeSeconds"),
    # recovery ends before anybody is served; snapshots are records of the metadata
    *("recoverStartTime", "recoverEndTime", "lastSnapshotTimestamps"),
    # topics that keep nothing have no ledger
    *("entriesAddedCounter", "waitingCursorsCount", "pendingAddEntriesCount"),
    # of versions long gone
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
    """Nothing that it reads is lost on the way through its own objects, or changed."""
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
    """What it shows; a text is one."""
    assert said is not None and said.code == 0, said
    try:
        return json.loads(said.out)
    except ValueError:
        return said.out.rstrip("\n") or None


def _shown_and_told(visit: Visit) -> tuple[Any, Any] | None:
    """What it printed, and what the one answer to it said; None if either is no JSON."""
    told = [a for a in visit.answers if (a.method, a.status) == ("GET", 200)]
    try:
        return (json.loads(visit.said.out), json.loads(told[0].body)) if len(told) == 1 else None
    except ValueError:
        return None


def _differing(shown: Any, told: Any, path: str) -> Iterator[str]:
    """What is shown and was told otherwise, or was not told at all."""
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
    """Sets of texts have no order."""
    return sorted(values) if all(isinstance(value, str) for value in values) else values
