"""The topics of a run, without the proxy: publishes the input, reads backlogs and the output."""

import contextlib
import time
import urllib.error
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from pybroker.base.names import TopicName, TxnId
from pybroker.client import Client, MessageId, PulsarException
from pybroker.eos_check.admin import ask
from pybroker.eos_check.connection_trace import Position, Txn
from pybroker.eos_check.settings import Input

AUDIT: Final = "eos-check"
SHARE: Final = "share"
_TRANSACTIONS: Final = "/admin/v3/transactions"
_KAFKA_GROUPS: Final = "/admin/v3/kafka/groups"
_TIMEOUT_S: Final = 10
_READ_TIMEOUT_MS: Final = 5000
_READ_S: Final = 60.0
_READ_AT_MOST: Final = 200_000


@dataclass(frozen=True, slots=True)
class Output:
    """A message that readers of the output see."""

    topic: str
    key: str
    value: bytes
    position: Position = (-1, -1)


class HalfPublished(Exception):
    """The broker ended while input was published: it is unknown which input was stored."""


class OutputIsTooLarge(Exception):
    """There are more messages than any check needs: the pipeline does not stop writing."""


class _Gone(Exception):
    """The admin API knows no such thing."""


class Topics:
    def __init__(self, service_url: str, admin_url: str, kafka: bool = False) -> None:
        self._service_url = service_url
        self._admin_url = admin_url
        self._kafka = kafka

    def prepare(self, source: str, outputs: Sequence[str]) -> None:
        """Creates the topics. A subscription that acknowledges nothing keeps the outputs.

        Tenants and namespaces are created too, because a pipeline may contain the names of its
        topics.
        """
        for topic in (source, *outputs):
            self._prepare_namespace(TopicName.parse(topic))
        # Only a topic without a producer or a consumer so far accepts any schema.
        for topic in (source, *outputs):
            self._ask(self._path(topic), "PUT")
        for topic in outputs:
            self._ask(f"{self._path(topic)}/subscription/{AUDIT}", "PUT", b'"earliest"')

    def _prepare_namespace(self, topic: TopicName) -> None:
        tenant, namespace = quote(topic.tenant, safe=""), quote(topic.namespace, safe="")
        for path in (f"tenants/{tenant}", f"namespaces/{tenant}/{namespace}"):
            try:
                self._ask(f"/admin/v2/{path}", "PUT", b"{}")
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.CONFLICT:  # it exists already
                    raise

    def publish(self, topic: str, inputs: Sequence[Input]) -> list[Position]:
        """Publishes each input in an entry of its own, so that it can be acknowledged alone. Raises
        HalfPublished.
        """
        positions = []
        try:
            with self._client() as client:
                producer = client.create_producer(topic, send_timeout_millis=_TIMEOUT_S * 1000)
                for each in inputs:
                    at = producer.send(each.value, partition_key=each.key)
                    positions.append((at.ledger_id(), at.entry_id()))
        except PulsarException as error:
            raise HalfPublished(f"the input could not be published to {topic}: {error}") from error
        return positions

    def read(self, topics: Sequence[str]) -> tuple[Output, ...]:
        """All messages that a new reader gets now, in the order of each topic."""
        found: list[Output] = []
        with self._client() as client:
            for topic in topics:
                reader = client.create_reader(topic, MessageId.earliest)
                give_up_at = time.monotonic() + _READ_S
                while time.monotonic() < give_up_at and reader.has_message_available():
                    for message in reader.batch_read(1000, _READ_TIMEOUT_MS):
                        at = message.message_id()
                        position = at.ledger_id(), at.entry_id()
                        key = message.partition_key()
                        found.append(Output(topic, key, message.data(), position))
                    if len(found) > _READ_AT_MOST:
                        raise OutputIsTooLarge(f"{topic} has more than {_READ_AT_MOST:,} messages")
        return tuple(found)

    def backlogs(self, topic: str) -> dict[str, int]:
        """Backlogs by subscription, without this check's own, and of Kafka's groups. A reader's
        exists while it is connected.
        """
        try:
            stats = self._ask(f"{self._path(topic)}/stats")
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return {}  # the topic was deleted, as unused topics are
        found = {
            subscription: int(about.get("msgBacklog", 0))
            for subscription, about in stats.get("subscriptions", {}).items()
            if subscription != AUDIT
        }
        return found | self._lags(topic) if self._kafka else found

    def _lags(self, topic: str) -> dict[str, int]:
        """Of groups. One that has committed nothing there has everything left; it may be about to
        read another topic, but then another one commits.
        """
        found, local = dict[str, int](), TopicName.parse(topic).local
        groups: Any = self._ask(_KAFKA_GROUPS)
        for group in groups:
            if group["kind"] == SHARE:  # it is a subscription, too
                continue
            with contextlib.suppress(_Gone):
                found[group["group"]] = self._lag(group["group"], local)
        return found

    def _lag(self, group: str, local: str) -> int:
        """Raises _Gone if there is no such group any more, or the topic is not one of Kafka's."""
        offsets = self._ask_of_what_may_go(f"{_KAFKA_GROUPS}/{quote(group, safe='')}")["offsets"]
        if lags := [each.get("lag", 0) for each in offsets if each["topic"] == local]:
            return sum(lags)
        ends = self._ask_of_what_may_go(f"/admin/v3/kafka/endOffsets/{quote(local, safe='')}")
        return sum(int(each["endOffset"]) for each in ends)

    def _ask_of_what_may_go(self, path: str) -> Any:
        """Raises _Gone."""
        try:
            return self._ask(path)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                raise _Gone from None
            raise

    def open_transactions(self) -> list[tuple[Txn, int]]:
        """The ids, and when they began, in milliseconds since the epoch."""
        live = self._ask(f"{_TRANSACTIONS}/live?limit=100")["transactions"]
        found = []
        for each in live:
            if each["status"] == "OPEN":
                txn_id = TxnId.parse(each["txnId"])
                found.append(((txn_id.most, txn_id.least), int(each["openTimestamp"])))
        return found

    def abort(self, txn: Txn) -> bool:
        """Aborts a transaction, as its timeout would. No effect if it has ended. False: no timeout
        would end it, because it is prepared.
        """
        base, name = _TRANSACTIONS, f"{txn[0]}/{txn[1]}"
        with contextlib.suppress(urllib.error.HTTPError):
            if self._ask(f"{base}/transactionMetadata/{name}").get("status") == "PREPARED":
                return False
            self._ask(f"{base}/abortTransaction/{name}", "POST")
        return True

    def _client(self) -> Client:
        return Client(self._service_url, operation_timeout_seconds=_TIMEOUT_S)

    @staticmethod
    def _path(topic: str) -> str:
        name = TopicName.parse(topic)
        local = quote(name.local, safe="")
        return f"/admin/v2/{name.domain}/{name.tenant}/{name.namespace}/{local}"

    def _ask(self, path: str, method: str = "GET", body: bytes | None = None) -> dict[str, Any]:
        found: dict[str, Any] = ask(self._admin_url + path, method, body)
        return found
