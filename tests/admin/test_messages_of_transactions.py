"""Messages of open, committed and aborted transactions in the admin REST."""

from collections.abc import Iterator

import httpx
import pytest
from raw_client import RawClient

from pybroker.base.names import TxnId
from pybroker.testing import RunningBroker

P = "/admin/v2/persistent"


@pytest.fixture
def raw(admin_broker: RunningBroker, topic: str) -> Iterator[RawClient]:
    with RawClient(admin_broker.service_url) as raw:
        raw.create_producer(f"persistent://{topic}")
        yield raw


class Shown:
    """The transaction headers of messages, by position."""

    def __init__(self, admin: httpx.Client, topic: str) -> None:
        self._admin = admin
        self._topic = topic

    def by_id(self, receipt: object) -> tuple[str | None, str | None]:
        """X-Pulsar-txn-aborted and X-Pulsar-txn-uncommitted."""
        where = receipt.message_id  # type: ignore[attr-defined]
        return self._ask(f"ledger/{where.ledgerId}/entry/{where.entryId}")

    def examined(self, number: int) -> tuple[str | None, str | None]:
        path = f"examinemessage?initialPosition=earliest&messagePosition={number}"
        return self._ask(path)

    def _ask(self, path: str) -> tuple[str | None, str | None]:
        answer = self._admin.get(f"{P}/{self._topic}/{path}")
        assert answer.status_code == 200
        headers = answer.headers
        return headers.get("x-pulsar-txn-aborted"), headers.get("x-pulsar-txn-uncommitted")


@pytest.fixture
def shown(admin: httpx.Client, topic: str) -> Shown:
    return Shown(admin, topic)


def begin(raw: RawClient, topic: str) -> TxnId:
    txn_id = raw.new_txn()
    raw.add_partition(txn_id, f"persistent://{topic}")
    return txn_id


def test_a_message_tells_how_its_transaction_stands(
    raw: RawClient, topic: str, shown: Shown
) -> None:
    plain = raw.publish(b"plain", 0)
    txn_id = begin(raw, topic)
    inside, behind = raw.publish(b"inside", 1, txn_id), raw.publish(b"behind", 2)
    assert shown.by_id(plain) == (None, "false")
    assert shown.by_id(inside) == shown.examined(2) == ("false", "true")
    assert shown.by_id(behind) == (None, "true"), "readers are not given it yet"
    raw.end(txn_id, commit=True)
    assert shown.by_id(inside) == shown.examined(2) == ("false", "false")
    assert shown.by_id(behind) == (None, "false")


def test_a_message_of_an_aborted_transaction_tells_so(
    raw: RawClient, topic: str, shown: Shown
) -> None:
    txn_id = begin(raw, topic)
    inside = raw.publish(b"inside", 0, txn_id)
    raw.end(txn_id, commit=False)
    assert shown.by_id(inside) == shown.examined(1) == ("true", "false")


def test_an_aborted_message_tells_so_though_its_metadata_names_no_transaction(
    raw: RawClient, topic: str, shown: Shown
) -> None:
    txn_id = begin(raw, topic)
    named = {"txnid_most_bits": txn_id.most, "txnid_least_bits": txn_id.least}
    inside = raw.publish(b"inside", 0, send_fields=named)
    assert shown.by_id(inside) == (None, "true"), "what may yet be committed tells no more"
    raw.end(txn_id, commit=False)
    assert shown.by_id(inside) == shown.examined(1) == ("true", "false")
