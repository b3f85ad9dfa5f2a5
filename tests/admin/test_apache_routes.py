"""Which of Apache Pulsar's routes exist here, and why the others do not."""

import re
from pathlib import Path
from typing import Final

from described import routes

from pybroker.admin.http.permitted import plain_path

LISTED: Final = [
    tuple(line.split("\t")[:2])
    for line in (Path(__file__).parent / "apache_routes.tsv").read_text().splitlines()[1:]
]
# By the start of the path, with the reason.
NOT_SERVED: Final = {
    "/admin/v2/namespaces/{}/{}/scanOffloadedLedgers": "nothing is offloaded",
}
OURS: Final = {
    ("GET", "/admin/openapi.json"),
    ("GET", "/metrics"),
    ("GET", "/metrics/"),
    ("GET", "/admin/v2/brokers/connections"),
    ("GET", "/admin/v2/brokers/log"),
    # In test mode.
    ("GET", "/admin/v3/clock"),
    ("POST", "/admin/v3/clock/advance"),
    ("GET", "/admin/v3/faults/passings"),
    ("GET", "/admin/v3/faults/points"),
    *((verb, "/admin/v3/faults/rules") for verb in ("GET", "POST", "DELETE")),
    *((verb, "/admin/v3/faults/rules/{}") for verb in ("GET", "DELETE")),
    ("GET", "/admin/v3/faults/rules/{}/hit"),
    ("POST", "/admin/v3/faults/rules/{}/release"),
    ("POST", "/admin/v3/transactions/{}/{}/prepare"),
    ("GET", "/admin/v3/transactions/blocking"),
    ("GET", "/admin/v3/transactions/blocking/{}/{}/{}"),
    # Where Apache Pulsar's own Java client requests them.
    ("GET", "/admin/namespaces/{}/antiAffinity/{}"),
    ("GET", "/admin/namespaces/{}/{}"),
    ("DELETE", "/admin/v2/namespaces/{}/{}/deduplicationSnapshotInterval"),
    # Of Apache Pulsar 5.0, whose other routes are in the list of 4.2.
    ("GET", "/admin/v2/scalable/{}/{}"),
    *((verb, "/admin/v2/scalable/{}/{}/{}") for verb in ("GET", "PUT", "DELETE")),
    ("GET", "/admin/v2/scalable/{}/{}/{}/stats"),
    ("GET", "/admin/v2/scalable/{}/{}/{}/segments/{}/stats"),
    ("POST", "/admin/v2/scalable/{}/{}/{}/split/{}"),
    ("POST", "/admin/v2/scalable/{}/{}/{}/merge/{}/{}"),
    ("POST", "/admin/v2/scalable/{}/{}/{}/rebucket/{}"),
    ("POST", "/admin/v2/scalable/{}/{}/{}/migrate"),
    *((verb, "/admin/v2/scalable/{}/{}/{}/subscriptions/{}") for verb in ("PUT", "DELETE")),
    ("POST", "/admin/v2/scalable/{}/{}/{}/subscriptions/{}/seek"),
    ("POST", "/admin/v2/scalable/{}/{}/{}/subscriptions/{}/skip-all"),
    ("GET", "/admin/v2/scalable/{}/{}/{}/permissions"),
    *((verb, "/admin/v2/segments/{}/{}/{}/{}") for verb in ("PUT", "DELETE")),
    ("POST", "/admin/v2/segments/{}/{}/{}/{}/terminate"),
    *((v, "/admin/v2/segments/{}/{}/{}/{}/subscription/{}") for v in ("PUT", "DELETE")),
    ("GET", "/admin/v2/segments/{}/{}/{}/{}/subscription/{}/backlog"),
    ("POST", "/admin/v2/segments/{}/{}/{}/{}/subscription/{}/seek"),
    ("POST", "/admin/v2/segments/{}/{}/{}/{}/subscription/{}/skip-all"),
    ("POST", "/admin/v2/namespaces/{}/{}/{}/clearSubscriptionBacklog/{}"),
    *((verb, "/admin/v2/scalable/{}/{}/{}/permissions/{}") for verb in ("POST", "DELETE")),
    *(
        (verb, f"/admin/v2/{path}")
        for verb in ("GET", "POST", "DELETE")
        for path in (
            "scalable/{}/{}/{}/autoScalePolicy",
            "namespaces/{}/{}/scalableTopicAutoScalePolicy",
        )
    ),
    *((verb, "/admin/v2/namespaces/{}/{}/transactionLimits") for verb in ("GET", "POST", "DELETE")),
    *((verb, "/admin/v2/namespaces/{}/{}/transactionBuffer") for verb in ("GET", "POST", "DELETE")),
    *((verb, "/admin/v2/{}/{}/{}/{}/transactionBuffer") for verb in ("GET", "POST", "DELETE")),
    *(
        (verb, f"/admin/v2/{place}/compactionDeleteRetention")
        for verb in ("GET", "POST", "DELETE")
        for place in ("namespaces/{}/{}", "{}/{}/{}/{}")
    ),
    ("GET", "/admin/v2/namespaces/{}/{}/transactionCoordinators"),
    ("POST", "/admin/v2/namespaces/{}/{}/transactionCoordinators"),
    ("DELETE", "/admin/v2/namespaces/{}/{}/transactionCoordinators"),
    # Receiving, as PIP-64 proposed it.
    *(
        ("POST", f"/topics/{{}}/{{}}/{{}}/{{}}/subscriptions/{{}}/{what}")
        for what in ("receive", "acknowledge", "negativeAcknowledge")
    ),
    ("DELETE", "/topics/{}/{}/{}/{}/subscriptions/{}/receiver"),
    # Apache Pulsar's servlets for WebSockets.
    ("GET", "/ws/v2/consumer/{}/{}/{}/{}/{}"),
    ("GET", "/ws/v2/producer/{}/{}/{}/{}"),
    ("GET", "/ws/v2/reader/{}/{}/{}/{}"),
    ("GET", "/ws/v3/consumer/{}"),
    # Transactions for any language.
    ("POST", "/admin/v3/transactions"),
    ("GET", "/admin/v3/transactions/{}/{}"),
    ("POST", "/admin/v3/transactions/{}/{}/abort"),
    ("POST", "/admin/v3/transactions/{}/{}/commit"),
    ("POST", "/admin/v3/transactions/{}/{}/prepare"),
    ("POST", "/admin/v3/transactions/{}/{}/kafkaOffsets"),
    ("GET", "/admin/v3/kafka/groups"),
    ("GET", "/admin/v3/kafka/groups/{}"),
    ("DELETE", "/admin/v3/kafka/offsets/{}"),
    ("GET", "/admin/v3/kafka/endOffsets/{}"),
    ("GET", "/admin/v3/kafka/shareOffsets/{}/{}"),
    ("POST", "/admin/v3/kafka/shareOffsets/{}/{}"),
    ("DELETE", "/admin/v3/kafka/shareOffsets/{}/{}"),
    ("GET", "/admin/v3/migrations/{}/{}/{}"),
    ("PUT", "/admin/v3/migrations/{}/{}/{}"),
    ("GET", "/admin/v3/transactions/ended"),
    ("GET", "/admin/v3/transactions/live"),
    ("GET", "/admin/v3/transactions/segments/{}/{}/{}"),
    ("GET", "/admin/v3/transactions/timeline/{}/{}"),
    ("GET", "/admin/v3/transactions/transactionalIds"),
    ("GET", "/admin/v3/transactions/transactionalIds/{}"),
}


def bare(path: str) -> str:
    return re.sub(r"{[^}]*}", "{}", path)


SERVED: Final = {(route.method, bare(plain_path(route.path))) for route in routes()}
WANTED: Final = {(method, bare(path)) for method, path in LISTED}


def test_every_route_of_apache_pulsar_is_there_or_left_out_for_a_reason() -> None:
    missing = [path for _, path in WANTED - SERVED]
    assert [path for path in missing if not path.startswith(tuple(NOT_SERVED))] == []


def test_nothing_is_left_out_that_is_there() -> None:
    left_out = {path for _, path in WANTED - SERVED}
    for beginning in NOT_SERVED:
        assert any(path.startswith(beginning) for path in left_out)
        assert not any(path.startswith(beginning) for _, path in SERVED)


def test_routes_of_our_own_are_few() -> None:
    assert SERVED - WANTED == OURS
