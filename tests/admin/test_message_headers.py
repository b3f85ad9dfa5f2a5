"""A message's metadata as headers: however much a producer wrote, the headers stay bounded."""

import json

from pybroker.admin.message_headers import MOST_BYTES, as_headers
from pybroker.wire import pulsar_api_pb2 as pb


def headers_of(metadata: pb.MessageMetadata) -> dict[str, bytes]:
    found = as_headers([("Message-ID", "1:2")], metadata)
    return {name.decode().removeprefix("X-Pulsar-"): value for name, value in found}


def made(**fields: object) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        **{"producer_name": "p", "sequence_id": 0, "publish_time": 1, **fields}
    )


def test_of_very_many_properties_the_first_are_there_and_the_others_are_counted() -> None:
    many = made(properties=[{"key": f"{n:x}", "value": ""} for n in range(300_000)])
    headers = headers_of(many)
    assert len(json.loads(headers["PROPERTY"])) == 1000
    assert "PROPERTY-0" in headers and len(headers) < 1010
    assert headers["Omitted"] == b"299000"


def test_names_of_clusters_are_bounded_too() -> None:
    found = as_headers([], made(replicate_to=["c"] * 50_000))
    assert len(found) < 1010
    assert (b"X-Pulsar-Omitted", b"49000") in found


def test_what_is_too_long_is_left_out_and_what_is_behind_it_is_not() -> None:
    properties = [{"key": "a", "value": "v" * 300_000}, {"key": "b", "value": "w"}]
    odd = made(producer_name="p" * 5_000_000, ordering_key=b"k" * 400_000, properties=properties)
    headers = headers_of(odd)
    assert json.loads(headers["PROPERTY"]) == {"b": "w"}
    assert (headers["Message-ID"], headers["sequence-id"], headers["Omitted"]) == (
        b"1:2",
        b"0",
        b"3",
    )
    assert "producer-name" not in headers and "Base64-ordering-key" not in headers


def test_what_producers_write_is_complete() -> None:
    long = {f"key-{n}": "v" * 250 for n in range(900)}
    headers = headers_of(made(properties=[{"key": k, "value": v} for k, v in long.items()]))
    assert json.loads(headers["PROPERTY"]) == long
    assert "Omitted" not in headers
    assert sum(map(len, headers.values())) < 3 * MOST_BYTES
