"""The codecs by hand against the interpreter of the table: the same bodies, the same bytes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.kafka.codec import fetch, messages, produce
from pybroker.kafka.codec.messages import Header, encode_request, read_header
from pybroker.kafka.codec.primitives import Malformed

PRODUCE, FETCH = 0, 1
NAMES = st.text(max_size=12) | st.just("n" * 126) | st.just("n" * 127) | st.just("n" * 200)
IDS = st.binary(min_size=16, max_size=16)
I16, I32, I64 = st.integers(-1, 9), st.integers(-1, 2**31 - 1), st.integers(-1, 2**63 - 1)
RECORDS = st.none() | st.binary(max_size=20) | st.just(b"r" * 127) | st.just(b"r" * 70_000)


def lists(of: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(of, max_size=3)


PRODUCES = st.fixed_dictionaries(
    {
        "transactional_id": st.none() | NAMES,
        "acks": I16,
        "timeout_ms": I32,
        "topic_data": lists(
            st.fixed_dictionaries(
                {
                    "name": NAMES,
                    "partition_data": lists(
                        st.fixed_dictionaries({"index": I32, "records": RECORDS})
                    ),
                },
                optional={"topic_id": IDS},
            )
        ),
    }
)
ANSWERS = st.fixed_dictionaries(
    {
        "responses": lists(
            st.fixed_dictionaries(
                {
                    "name": NAMES,
                    "partition_responses": lists(
                        st.fixed_dictionaries(
                            {
                                "index": I32,
                                "error_code": I16,
                                "base_offset": I64,
                                "log_append_time_ms": I64,
                                "log_start_offset": I64,
                            },
                            optional={"error_message": st.none() | NAMES},
                        )
                    ),
                },
                optional={"topic_id": IDS},
            )
        )
    }
)
FETCHES = st.fixed_dictionaries(
    {
        "replica_id": I32,
        "max_wait_ms": I32,
        "min_bytes": I32,
        "max_bytes": I32,
        "isolation_level": st.integers(0, 1),
        "session_id": I32,
        "session_epoch": I32,
        "rack_id": NAMES,
        "topics": lists(
            st.fixed_dictionaries(
                {
                    "topic": NAMES,
                    "partitions": lists(
                        st.fixed_dictionaries(
                            {"partition": I32, "fetch_offset": I64, "partition_max_bytes": I32},
                            optional={"replica_directory_id": IDS, "high_watermark": I64},
                        )
                    ),
                },
                optional={"topic_id": IDS},
            )
        ),
    },
    optional={
        "cluster_id": st.none() | NAMES,
        "replica_state": st.fixed_dictionaries({"replica_id": I32, "replica_epoch": I64}),
        "forgotten_topics_data": lists(
            st.fixed_dictionaries({"topic": NAMES, "partitions": lists(I32)})
        ),
    },
)
FETCHED = st.fixed_dictionaries(
    {
        "responses": lists(
            st.fixed_dictionaries(
                {
                    "topic": NAMES,
                    "partitions": lists(
                        st.fixed_dictionaries(
                            {
                                "partition_index": I32,
                                "error_code": I16,
                                "high_watermark": I64,
                                "last_stable_offset": I64,
                                "log_start_offset": I64,
                                "aborted_transactions": st.none() | st.just([]),
                                "records": RECORDS.map(lambda each: each or b""),
                            }
                        )
                    ),
                },
                optional={"topic_id": IDS},
            )
        )
    }
)


def read_both(hot: Any, key: int, version: int, frame: bytes) -> tuple[Any, Any]:
    _, at = read_header(frame, version >= (9 if key == PRODUCE else 12))
    found: list[Any] = []
    for each in (hot, messages):
        try:
            found.append(each.decode_request(key, version, frame, at))
        except Malformed as error:
            found.append(str(error))
    return found[0], found[1]


@given(PRODUCES, st.integers(3, 13))
def test_a_produce_is_read_alike(body: dict[str, Any], version: int) -> None:
    frame = encode_request(Header(PRODUCE, version, 1, "c"), body)
    ours, theirs = read_both(produce, PRODUCE, version, frame)
    assert ours == theirs


@given(FETCHES, st.integers(4, 18))
def test_a_fetch_is_read_alike(body: dict[str, Any], version: int) -> None:
    frame = encode_request(Header(FETCH, version, 1, "c"), body)
    ours, theirs = read_both(fetch, FETCH, version, frame)
    assert ours == theirs


@given(ANSWERS, st.integers(3, 13))
def test_a_produce_is_answered_alike(body: dict[str, Any], version: int) -> None:
    encoded = produce.encode_response(PRODUCE, version, body)
    assert encoded == messages.encode_response(PRODUCE, version, body)


@given(FETCHED, st.integers(4, 18))
def test_a_fetch_is_answered_alike(body: dict[str, Any], version: int) -> None:
    encoded = fetch.encode_response(FETCH, version, body)
    assert encoded == messages.encode_response(FETCH, version, body)


@pytest.mark.parametrize(
    ("hot", "key", "version"),
    [(produce, PRODUCE, 9), (produce, PRODUCE, 13)]
    + [(fetch, FETCH, version) for version in (12, 13, 18)],
)
@given(data=st.data())
def test_damaged_requests_are_refused_alike(
    hot: Any, key: int, version: int, data: st.DataObject
) -> None:
    body = data.draw(PRODUCES if key == PRODUCE else FETCHES)
    frame = bytearray(encode_request(Header(key, version, 1, "c"), body))
    start = read_header(bytes(frame), True)[1]
    at = data.draw(st.integers(start, max(start, len(frame) - 1)))
    if data.draw(st.booleans()):
        del frame[at:]
    elif at < len(frame):
        frame[at] = data.draw(st.integers(0, 255))
    ours, theirs = read_both(hot, key, version, bytes(frame))
    assert ours == theirs
