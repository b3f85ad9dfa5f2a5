"""What passes on a connection of a Kafka client.

A request that changes state is a step, named as its API is; EndTxn is COMMIT or ABORT, as with
Pulsar's clients. Answers come in the order of the requests and have their correlation ids. Those
that name brokers are rewritten, so that clients connect to the proxy. After SaslHandshake 0 some
frames are messages of the login, without requests around them: they pass as they are.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pybroker.eos_check.connection_trace import Event, Seen, after, before
from pybroker.eos_check.wire import FRAME_AT_MOST, Unreadable
from pybroker.kafka.codec.message_table import message_kinds
from pybroker.kafka.codec.messages import (
    HEADER_BYTES,
    decode_request,
    decode_response,
    encode_response,
    key_and_version,
    read_header,
    response_header,
)
from pybroker.kafka.codec.primitives import Malformed
from pybroker.kafka.errors import ErrorCode

_PRODUCE, _METADATA, _SASL_HANDSHAKE, _END_TXN = 0, 3, 17, 26
_STEPS: Final = {
    _PRODUCE: "PRODUCE",
    8: "OFFSET_COMMIT",
    22: "INIT_PRODUCER_ID",
    24: "ADD_PARTITIONS_TO_TXN",
    25: "ADD_OFFSETS_TO_TXN",
    28: "TXN_OFFSET_COMMIT",
    _END_TXN: "END_TXN",
    79: "SHARE_ACKNOWLEDGE",
}
_NAMES_BROKERS: Final = frozenset((_METADATA, 10, 60))  # Metadata, FindCoordinator, DescribeCluster
_FIRST_WITH_REQUESTS: Final = 1  # of SaslHandshake: the login is in SaslAuthenticate
_LOGIN_FRAMES: Final = {"SCRAM-SHA-256": 2, "SCRAM-SHA-512": 2}  # of each side; of others one
_PENDING_AT_MOST: Final = 100_000
_SIZE: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class _Asked:
    key: int
    version: int
    event: Event | None
    login_frames: int = 0  # that follow the answer, from each side


class KafkaWire:
    """Implements Wire."""

    frame_at_least = 0
    frame_at_most = FRAME_AT_MOST

    def __init__(self, host: str, port: int, topics: dict[bytes, str]) -> None:
        """`host` and `port` are the proxy's. `topics` are names by id, as Metadata told; a client
        may have asked for them on another connection.
        """
        self._place = {"host": host, "port": port}
        self._asked: dict[int, _Asked] = {}  # by correlation id
        self._topics = topics
        self._from_client_as_is = self._from_broker_as_is = 0  # so many frames of a login

    def from_client(self, frame: bytes) -> Seen:
        if self._from_client_as_is:
            self._from_client_as_is -= 1
            return Seen()
        data = frame[_SIZE.size :]
        if len(data) < HEADER_BYTES:
            raise Unreadable
        key, version, correlation_id = key_and_version(data)
        if key == _SASL_HANDSHAKE and version < _FIRST_WITH_REQUESTS:
            frames = _LOGIN_FRAMES.get(_request(key, version, data)["mechanism"], 1)
            self._asked[correlation_id] = _Asked(key, version, None, frames)
            return Seen()
        if key not in _STEPS and key not in _NAMES_BROKERS:
            return Seen()
        event, is_answered = None, True
        if key in _STEPS:
            body = _request(key, version, data)
            is_answered = key != _PRODUCE or body["acks"] != 0
            event = Event(_STEPS[key], self._topics_of(body))
            if key == _END_TXN:
                event.what = "COMMIT" if body["committed"] else "ABORT"
            event.note = str(body.get("group_id") or "")
        if is_answered and len(self._asked) < _PENDING_AT_MOST:
            self._asked[correlation_id] = _Asked(key, version, event)
        return Seen() if event is None else Seen(event, before(event), is_answered)

    def from_broker(self, frame: bytes) -> tuple[Seen, bytes]:
        if self._from_broker_as_is:
            self._from_broker_as_is -= 1
            return Seen(), frame
        data = frame[_SIZE.size :]
        if len(data) < _SIZE.size:
            raise Unreadable
        asked = self._asked.pop(_SIZE.unpack_from(data)[0], None)
        if asked is None:
            return Seen(), frame
        try:
            correlation_id, body = decode_response(asked.key, asked.version, data)
        except Malformed:
            raise Unreadable from None
        if asked.login_frames:
            if not body["error_code"]:
                self._from_client_as_is = self._from_broker_as_is = asked.login_frames
            return Seen(), frame
        if asked.event is not None:
            done = Event(asked.event.what, asked.event.topic, True, note=asked.event.note)
            done.error = ", ".join(dict.fromkeys(_errors(body)))
            return Seen(done, after(asked.event)), frame
        for topic in body.get("topics") or () if asked.key == _METADATA else ():
            self._topics[bytes(topic.get("topic_id") or b"")] = topic["name"] or ""
        _rewrite(body, self._place)
        data = response_header(asked.key, asked.version, correlation_id)
        data += encode_response(asked.key, asked.version, body)
        return Seen(), _SIZE.pack(len(data)) + data

    def _topics_of(self, body: Mapping[str, Any]) -> str:
        """The names of the topics in a request, those of all transactions in it."""
        names = dict.fromkeys(filter(None, self._names(body)))
        return ", ".join(sorted(names))

    def _names(self, body: Mapping[str, Any]) -> Iterator[str]:
        for transaction in body.get("transactions") or ():
            yield from self._names(transaction)
        for field in ("topic_data", "topics", "v3_and_below_topics"):
            for topic in body.get(field) or ():
                yield topic.get("name") or self._topics.get(bytes(topic.get("topic_id") or b""), "")


def _request(key: int, version: int, data: bytes) -> Mapping[str, Any]:
    try:
        _, at = read_header(data, message_kinds()[key].is_flexible(version))
        return decode_request(key, version, data, at)
    except (Malformed, KeyError):
        raise Unreadable from None


def _rewrite(body: Any, place: Mapping[str, Any]) -> None:
    """Every broker's address in the body becomes `place`; an absent one stays absent."""
    if isinstance(body, list):
        for each in body:
            _rewrite(each, place)
    elif isinstance(body, dict):
        if body.get("host") and "port" in body:
            body |= place
        for each in body.values():
            _rewrite(each, place)


def _errors(body: Any) -> Iterator[str]:
    """The names of the error codes in an answer."""
    if isinstance(body, list):
        for each in body:
            yield from _errors(each)
    elif isinstance(body, dict):
        for name, each in body.items():
            if name.endswith("error_code") and each:
                yield _name_of(each)
            else:
                yield from _errors(each)


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
