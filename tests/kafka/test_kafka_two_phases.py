"""InitProducerId 6 (KIP-939): transactions without a timeout, and what a dead producer has left."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from credentials import TOKEN_SETTINGS, token
from kafka_produce import create
from kafka_words import (
    INIT_PRODUCER_ID,
    TxnProducer,
    add_group,
    add_partition,
    commit_in_txn,
    end,
    inited,
    offset_of,
)
from raw_kafka import RawKafka

from pybroker.base.errors import ServiceNotReady
from pybroker.client import AuthenticationToken, Client, TxnId
from pybroker.kafka.errors import ErrorCode
from pybroker.process.kafka_sessions import KafkaSessions
from pybroker.testing import RunningBroker, broker

NONE = ErrorCode.NONE
HANDSHAKE, AUTHENTICATE, DESCRIBE_TRANSACTIONS = 17, 36, 65
LONGER = "5m"  # than a timeout; a connection may be idle for ten minutes
BOTH_VERSIONS = pytest.mark.parametrize("version", [3, 5])


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True, http=True) as started:
        with RawKafka(started.kafka_bootstrap) as raw:
            create(raw)
        yield started


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


@pytest.fixture
def client(running: RunningBroker) -> Iterator[Client]:
    with Client(running.service_url, enable_transaction=True) as connected:
        yield connected


def asked(name: str, keeps: bool, enables: bool = True) -> dict[str, Any]:
    return {
        "transactional_id": name,
        "transaction_timeout_ms": 60_000,
        "enable2_pc": enables,
        "keep_prepared_txn": keeps,
    }


def ask(raw: RawKafka, name: str, keeps: bool = False, enables: bool = True) -> dict[str, Any]:
    return raw.ask(INIT_PRODUCER_ID, 6, asked(name, keeps, enables))


def new(
    raw: RawKafka, name: str, keeps: bool = False, enables: bool = True
) -> tuple[TxnProducer, tuple[int, int]]:
    """A producer, and id and epoch of whoever began the transaction that was kept for it."""
    answer = ask(raw, name, keeps, enables)
    assert answer["error_code"] == NONE
    ongoing = answer["ongoing_txn_producer_id"], answer["ongoing_txn_producer_epoch"]
    return TxnProducer(name, answer["producer_id"], answer["producer_epoch"]), ongoing


NOTHING = (-1, -1)


def begun(raw: RawKafka, name: str, version: int = 3) -> TxnProducer:
    """In a transaction that commits offset 5 of the group of its name."""
    producer, _ = new(raw, name)
    if version < 5:
        assert add_partition(raw, producer) is NONE
        assert add_group(raw, producer, name) is NONE
    assert commit_in_txn(raw, producer, name, 5, version=version) is NONE
    return producer


def who(producer: TxnProducer) -> tuple[int, int]:
    return producer.producer_id, producer.epoch


def is_open(raw: RawKafka, group: str) -> bool:
    return offset_of(raw, group, stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT


def prepared(client: Client, name: str) -> list[TxnId]:
    return [each.txn_id for each in client.prepared_transactions(f"kafka:{name}")]


def test_its_transactions_have_no_timeout(running: RunningBroker, raw: RawKafka) -> None:
    producer = begun(raw, "patient")
    other = inited(raw, "impatient")
    assert add_group(raw, other, "impatient") is NONE
    assert commit_in_txn(raw, other, "impatient", 5) is NONE
    running.clock.advance(LONGER)
    running.wait_until(lambda: not is_open(raw, "impatient"))
    assert is_open(raw, "patient")
    found = raw.ask(DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["patient"]})
    assert found["transaction_states"][0]["transaction_timeout_ms"] == 2**31 - 1
    assert end(raw, producer) is NONE
    assert offset_of(raw, "patient", stable=True) == 5


@BOTH_VERSIONS
@pytest.mark.parametrize("committed", [True, False])
def test_the_next_producer_ends_what_a_dead_one_has_left(
    raw: RawKafka, client: Client, committed: bool, version: int
) -> None:
    name = f"left-{committed}-{version}"
    dead = begun(raw, name, version)
    heir, ongoing = new(raw, name, keeps=True)
    assert ongoing == who(dead) and who(heir) == (dead.producer_id, dead.epoch + 1)
    assert is_open(raw, name)
    assert len(prepared(client, name)) == 1
    assert end(raw, dead, committed) is ErrorCode.PRODUCER_FENCED
    assert end(raw, heir, committed, version=5) is NONE
    assert end(raw, heir, committed, version=5) is NONE, "repeated"
    assert end(raw, heir, not committed, version=5) is ErrorCode.INVALID_TXN_STATE
    assert prepared(client, name) == []
    assert offset_of(raw, name, stable=True) == (5 if committed else -1)
    next_one = heir._replace(epoch=heir.epoch + 1)  # the end has raised it
    assert commit_in_txn(raw, next_one, name, 6, version=5) is NONE
    assert end(raw, next_one, version=5) is NONE
    assert offset_of(raw, name, stable=True) == 6


def test_nothing_can_be_added_to_what_was_kept(raw: RawKafka) -> None:
    begun(raw, "closed")
    heir, _ = new(raw, "closed", keeps=True)
    assert add_partition(raw, heir) is ErrorCode.INVALID_TXN_STATE
    assert commit_in_txn(raw, heir, "closed", 9, version=5) is ErrorCode.INVALID_TXN_STATE
    assert end(raw, heir, version=5) is NONE
    assert offset_of(raw, "closed", stable=True) == 5


def test_whoever_dies_while_it_recovers_is_followed_by_one_that_hears_the_same(
    raw: RawKafka,
) -> None:
    dead = begun(raw, "again")
    heirs = [new(raw, "again", keeps=True) for _ in range(3)]
    assert [ongoing for _, ongoing in heirs] == [who(dead)] * 3
    assert [heir.epoch - dead.epoch for heir, _ in heirs] == [1, 2, 3]
    assert end(raw, heirs[1][0], version=5) is ErrorCode.PRODUCER_FENCED
    assert end(raw, heirs[2][0], version=5) is NONE
    assert offset_of(raw, "again", stable=True) == 5


def test_without_a_transaction_there_is_nothing_to_keep(raw: RawKafka) -> None:
    assert new(raw, "fresh", keeps=True)[1] == NOTHING
    producer = begun(raw, "done")
    assert end(raw, producer) is NONE
    heir, ongoing = new(raw, "done", keeps=True)
    assert ongoing == NOTHING
    assert end(raw, heir, version=5) is ErrorCode.INVALID_TXN_STATE
    assert commit_in_txn(raw, heir, "done", 7, version=5) is NONE
    assert end(raw, heir, version=5) is NONE
    assert offset_of(raw, "done", stable=True) == 7


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("enables", [False, True])
def test_a_producer_that_does_not_keep_it_aborts_it(
    raw: RawKafka, client: Client, kept: bool, enables: bool
) -> None:
    name = f"given-up-{kept}-{enables}"
    begun(raw, name)
    if kept:
        new(raw, name, keeps=True)
    _, ongoing = new(raw, name, enables=enables)
    assert ongoing == NOTHING and prepared(client, name) == []
    assert offset_of(raw, name, stable=True) == -1


def test_what_was_prepared_by_hand_is_left_to_whoever_did(
    running: RunningBroker, raw: RawKafka, client: Client
) -> None:
    dead = begun(raw, "by-hand")
    route = "/admin/v3/transactions/transactionalIds/by-hand"
    (found,) = httpx.get(running.admin_url + route).json()["openTransactions"]
    most, least = found.strip("()").split(",")
    txn = client.attach_transaction(TxnId(int(most), int(least)))
    txn.prepare("by hand")
    assert new(raw, "by-hand")[1] == NOTHING
    assert is_open(raw, "by-hand")
    txn.commit()
    assert offset_of(raw, "by-hand", stable=True) == 5
    assert end(raw, dead) is ErrorCode.PRODUCER_FENCED


def test_two_phases_can_be_switched_off_with_a_transaction_left(
    running: RunningBroker, raw: RawKafka
) -> None:
    dead = begun(raw, "off")
    heir, ongoing = new(raw, "off", keeps=True, enables=False)
    assert ongoing == who(dead)
    running.clock.advance(LONGER)
    assert end(raw, heir, version=5) is NONE
    next_one = heir._replace(epoch=heir.epoch + 1)
    assert commit_in_txn(raw, next_one, "off", 6, version=5) is NONE
    running.clock.advance("61s")
    running.wait_until(lambda: offset_of(raw, "off", stable=True) == 5)


@BOTH_VERSIONS
def test_all_of_it_survives_a_broker_that_is_killed(tmp_path: Path, version: int) -> None:
    with broker(data_dir=tmp_path, kafka=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            create(raw)
            dead = begun(raw, "p", version)
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            heir, ongoing = new(raw, "p", keeps=True)
            assert ongoing == who(dead)
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert is_open(raw, "p")
            assert add_partition(raw, heir) is ErrorCode.INVALID_TXN_STATE
            assert end(raw, heir, version=5) is NONE
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert end(raw, heir, version=5) is NONE, "repeated"
            assert offset_of(raw, "p", stable=True) == 5
            assert new(raw, "p", keeps=True)[1] == NOTHING


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_while_it_is_being_kept_loses_nothing(tmp_path: Path, when: str) -> None:
    with broker(data_dir=tmp_path, kafka=True, faults=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            create(raw)
            dead = begun(raw, "p")
            crash = running.faults.inject(f"transaction.log.prepare.{when}", "crash")
            raw.send(INIT_PRODUCER_ID, 6, asked("p", keeps=True))
            crash.wait_for_hit()
        running.start()
        with RawKafka(running.kafka_bootstrap) as raw:
            heir, ongoing = new(raw, "p", keeps=True)
            assert ongoing == who(dead)
            assert end(raw, heir, version=5) is NONE
            assert offset_of(raw, "p", stable=True) == 5


@contextmanager
def sessions_that_cannot_begin() -> Iterator[None]:
    """What is prepared before a session begins is left as if the broker had died then."""

    async def refused(*_: object) -> Any:
        raise ServiceNotReady("the older session's transactions take too long")

    with patch.object(KafkaSessions, "begin", refused):
        yield


@pytest.mark.parametrize("how", ["kept by the next", "ended by its own", "given up by the next"])
def test_what_is_prepared_while_no_session_begins_is_lost_by_nobody(
    raw: RawKafka, client: Client, how: str
) -> None:
    name = f"half-{how}"
    dead = begun(raw, name)
    with sessions_that_cannot_begin():
        assert ask(raw, name, keeps=True)["error_code"] == ErrorCode.CONCURRENT_TRANSACTIONS
    assert len(prepared(client, name)) == 1
    if how == "kept by the next":
        heir, ongoing = new(raw, name, keeps=True)
        assert ongoing == who(dead)
        assert end(raw, heir, version=5) is NONE
    elif how == "ended by its own":
        assert add_partition(raw, dead) is ErrorCode.INVALID_TXN_STATE
        assert end(raw, dead) is NONE
    else:
        assert new(raw, name)[1] == NOTHING
    assert prepared(client, name) == []
    assert offset_of(raw, name, stable=True) == (-1 if how == "given up by the next" else 5)


# -- who may, and how often


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningBroker]:
    settings = TOKEN_SETTINGS | {"authorization_enabled": True, "super_user_roles": ("admin",)}
    with broker(
        kafka=True,
        **settings,
        transaction_coordinators=1,
        prepare_transaction_roles=("alice", "bob"),
        max_prepared_transactions_per_principal=2,
    ) as started:
        with as_role(started, "admin") as raw:
            create(raw)
        started.call(_grant)
        yield started


async def _grant(started: Any) -> None:
    for role in ("alice", "bob", "carol"):
        await started.permissions.grant("public/default", role, ["produce", "consume"])


def as_role(started: RunningBroker, role: str) -> RawKafka:
    raw = RawKafka(started.kafka_bootstrap)
    raw.ask(HANDSHAKE, 1, {"mechanism": "PLAIN"})
    login = b"\0any\0" + token(role).encode()
    assert raw.ask(AUTHENTICATE, 2, {"auth_bytes": login})["error_code"] == NONE
    return raw


def test_it_is_for_the_roles_that_may_prepare(guarded: RunningBroker) -> None:
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    with as_role(guarded, "carol") as carol:
        assert ask(carol, "c")["error_code"] == refused
        assert ask(carol, "c", keeps=True, enables=False)["error_code"] == refused
        assert ask(carol, "c", enables=False)["error_code"] == NONE
    for role in ("alice", "admin"):
        with as_role(guarded, role) as raw:
            assert ask(raw, "c", keeps=True)["error_code"] == NONE


def test_a_role_has_no_more_of_them_than_its_share(guarded: RunningBroker) -> None:
    with as_role(guarded, "alice") as alice, as_role(guarded, "bob") as bob:
        for name in ("1", "2"):
            begun(alice, name)
        third, _ = new(alice, "3")
        assert add_group(alice, third, "3") is ErrorCode.INVALID_TXN_STATE
        begun(bob, "1")
        heir, _ = new(alice, "1", keeps=True)  # is counted already
        assert add_group(alice, third, "3") is ErrorCode.INVALID_TXN_STATE
        assert end(alice, heir, version=5) is NONE
        assert add_group(alice, third, "3") is NONE
        login = AuthenticationToken(token("alice"))
        with Client(guarded.service_url, authentication=login) as client:
            assert [each.owner for each in client.prepared_transactions()] == []
