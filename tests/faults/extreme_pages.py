"""Every page of the console, and every way to look at a message, with extreme queries over extreme
data. New pages are covered automatically.
"""

import json
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

from extreme_values import Request
from raw_client import RawClient

from pybroker.console.pages.table import PAGES
from pybroker.wire import pulsar_api_pb2 as pb

_NAMESPACE: Final = "public/extremes"
_PARTS: Final = {
    "domain": "persistent",
    "tenant": "public",
    "namespace": "extremes",
    "topic": "pages",
    "subscription": "s",
    "most": "0",
    "least": "0",
}
_QUERIES: Final = (
    "",
    "filter=" + "az+" * 15_000,
    "search=" + "+".join(f"w{n}" for n in range(5000)),
    "search=" + "x" * 50_000,
    "page=999999999&first=999999999999&count=99999&from=subscription:s",
    "control=public/extremes/markers&topic=%00&position=%ff:1",
)


def publish(client: RawClient) -> None:
    """An entry of each shape in a topic of its own."""
    for topic, shape in shapes().items():
        if topic == "markers":
            client.subscribe(f"{_NAMESPACE}/{topic}", 900, subscription="query-q")
        producer_id = 900 + len(topic)
        client.create_producer(f"{_NAMESPACE}/{topic}", producer_id)
        client.publish(shape.pop("payload"), 0, producer_id=producer_id, **shape)
        client.close_producer(producer_id)


def shapes() -> dict[str, dict[str, Any]]:
    """Payloads and metadata by the topic's name."""
    marker = {"query_id": "q", "batch_id": 1, "ends": {f"{n:x}": {} for n in range(20_000)}}
    single = pb.SingleMessageMetadata(payload_size=0)
    single.properties.extend([pb.KeyValue(key="k", value="")] * 100_000)
    long_key = {"partition_key": "k" * 1_000_000, "properties": [{"key": "a" * 300_000}]}
    long_key["properties"][0]["value"] = "az" * 300_000  # type: ignore[index]
    many = [{"key": f"{n:x}", "value": ""} for n in range(100_000)]
    return {
        "pages": {"payload": b"x", "properties": [{"key": "k", "value": "a" * 100_000 + "az"}]},
        "properties": {"payload": b"x", "properties": many},
        "clusters": {"payload": b"x", "replicate_to": ["c"] * 100_000},
        "long": {"payload": b"x", "producer_name": "p" * 1_000_000, **long_key},
        "bomb": _compressed(bytes(4 * 1024 * 1024)),
        "batch": _batch([b""] * 50_000) | {"producer_name": "p" * 1000},
        "markers": _batch([json.dumps(marker).encode()] * 20),
        "metadata": _compressed(_message(single, b"")) | {"num_messages_in_batch": 1},
        "deep": {"payload": b"[" * 100_000},
    }


def _batch(values: list[bytes]) -> dict[str, Any]:
    plain = b"".join(_message(pb.SingleMessageMetadata(payload_size=len(v)), v) for v in values)
    return _compressed(plain) | {"num_messages_in_batch": len(values)}


def _message(single: pb.SingleMessageMetadata, value: bytes) -> bytes:
    metadata = single.SerializeToString()
    return struct.pack(">I", len(metadata)) + metadata + value


def _compressed(plain: bytes) -> dict[str, Any]:
    payload = zlib.compress(plain)
    return {"payload": payload, "compression": pb.ZLIB, "uncompressed_size": len(plain)}


def requests() -> Iterator[Request]:
    views = [view for page in PAGES for view in page.views if view.method == "GET"]
    for path in sorted({view.path for view in views}):
        for query in _QUERIES:
            yield Request("GET", f"{_filled(path, _PARTS)}?{query}", b"")
    for topic in shapes():
        here = f"persistent/{_NAMESPACE}/{topic}"
        for page in ("messages", "messages/export", "messages?filter=az", "messages?show=hex"):
            yield Request("GET", f"/console/topics/{here}/{page}", b"")
        yield Request("GET", f"/admin/v2/{here}/examinemessage?initialPosition=earliest", b"")
    for path in ("/console/topics/go", "/console/login", "/console/assets/x"):
        for body in (b"a=" + b"%41" * 300_000, b"a=1&" * 10_000, b"\xff" * 100_000):
            yield Request("POST", path, body)


def _filled(path: str, parts: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: parts.get(found[1], "x"), path)
