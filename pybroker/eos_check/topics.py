"""The topics of a run, past the proxy: publishes the input, asks for backlogs, reads the output."""

import contextlib
import time
import urllib.error
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from pybroker.base.names import TopicName
from pybroker.client import Client, MessageId, PulsarException
from pybroker.eos_check.admin import ask
from pybroker.eos_check.connection_trace import Position, Txn
from pybroker.eos_check.settings import Input

AUDIT: Final = "eos-check"
_TIMEOUT_S: Final = 10
_READ_TIMEOUT_MS: Final = 5000
_READ_S: Final = 60.0
_READ_AT_MOST: Final = 200_000


@dataclass(frozen=True, slots=True)
class Output:
    """A message that a reader of the output sees."""

    topic: str
    key: str
    value: bytes
    position: Position = (-1, -1)


class HalfPublished(Exception):
    """The broker ended meanwhile: it is unknown which input was stored."""


class OutputIsTooLarge(Exception):
    """More messages than any check needs: the pipeline does not stop writing."""


class Topics:
    def __init__(self, service_url: str, admin_url: str) -> None:
        self._service_url = service_url
        self._admin_url = admin_url

    def prepare(self, source: str, outputs: Sequence[str]) -> None:
        """Creates them; a subscription that acknowledges nothing keeps the outputs.

        A pipeline may have its topics' names in its code, so tenants and namespaces are created.
        """
        for topic in (source, *outputs):
            self._prepare_namespace(TopicName.parse(topic))
        # A topic that had a producer or a consumer takes no new schema; these have had none.
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
                if error.code != HTTPStatus.CONFLICT:  # it is there
                    raise

    def publish(self, topic: str, inputs: Sequence[Input]) -> list[Position]:
        """Each as an entry of its own, to be acknowledged by itself. Raises HalfPublished."""
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
        """All messages that a new reader receives now, in each topic's order."""
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
        """By subscription of others; a reader's is there as long as it is connected."""
        try:
            stats = self._ask(f"{self._path(topic)}/stats")
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return {}  # it was deleted, as unused topics are
        return {
            subscription: int(about.get("msgBacklog", 0))
            for subscription, about in stats.get("subscriptions", {}).items()
            if subscription != AUDIT
        }

    def abort(self, txn: Txn) -> None:
        """As its timeout would. One that has ended remains as it is."""
        path = f"/admin/v3/transactions/abortTransaction/{txn[0]}/{txn[1]}"
        with contextlib.suppress(urllib.error.HTTPError):
            self._ask(path, "POST")

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
