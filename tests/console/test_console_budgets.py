"""A page looks at so much, shows so much, and lets others have their turn, whatever is stored."""

import asyncio
import base64
import json
import struct
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from browsing import Browser, words
from raw_client import RawClient

import pybroker.testing
from pybroker.admin.routes import message as message_routes
from pybroker.console import api, visit
from pybroker.console.api import Refused
from pybroker.console.notices import Notice, Notices
from pybroker.console.pages import pipelines
from pybroker.console.pages.topics.entries import Message
from pybroker.console.pages.topics.lines import Lines
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

PAGE = "/console/topics/persistent/public/default/{}/messages"
WORDS = [f"w{number}" for number in range(21)]


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as broker:
        yield broker


@pytest.fixture
def browser(plain: RunningBroker) -> Browser:
    return Browser(plain.admin_url)


@pytest.fixture
def raw(plain: RunningBroker) -> Iterator[RawClient]:
    with RawClient(plain.service_url) as raw:
        yield raw


def publish(raw: RawClient, topic: str, payload: bytes, **metadata: Any) -> None:
    raw.create_producer(topic)
    raw.publish(payload, 0, **metadata)


def batch_of(*values: bytes) -> dict[str, Any]:
    """A compressed batch: its payload, and the metadata that says so."""
    plain = b""
    for value in values:
        single = pb.SingleMessageMetadata(payload_size=len(value)).SerializeToString()
        plain += struct.pack(">I", len(single)) + single + value
    return {
        "payload": zlib.compress(plain),
        "compression": pb.ZLIB,
        "uncompressed_size": len(plain),
        "num_messages_in_batch": len(values),
    }


# -- searching


@pytest.mark.parametrize("path", [PAGE.format("searched") + "?filter=", "/console/topics?search="])
def test_a_search_has_at_most_twenty_words_and_repeated_ones_count_once(
    browser: Browser, raw: RawClient, path: str
) -> None:
    publish(raw, "searched", b"x")
    assert browser.open(path + "az+" * 20_000).status_code == 200
    assert browser.open(path + "+".join(WORDS[:20])).status_code == 200
    refused = browser.open(path + "+".join(WORDS))
    assert (refused.status_code, "at most 20 words" in words(refused.text)) == (400, True)


# -- looking


def test_an_entry_that_a_page_may_not_look_at_is_not_even_decompressed(
    browser: Browser, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = zlib.compress(bytes(1_000_000))
    publish(raw, "bomb", payload, compression=pb.ZLIB, uncompressed_size=1_000_000)
    assert "the first 4,096 of 1,000,000 bytes" in words(browser.page(PAGE.format("bomb")))

    def never(*_: Any) -> bytes:
        raise AssertionError("the size is known before")

    monkeypatch.setattr(message_routes, "decompressed", never)
    monkeypatch.setattr(api, "_MOST_OF_ANSWER", 999_999)
    page = words(browser.page(PAGE.format("bomb")))
    assert "This takes 1,000,000 bytes, more than the 999,999" in page


def test_what_was_found_is_shown_although_the_page_may_not_look_at_more(
    browser: Browser, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.create_producer("many")
    for number in range(5):
        raw.publish(b"%d" % number * 100_000, number)
    monkeypatch.setattr(api, "_MOST_BYTES", 250_000)
    page = words(browser.page(PAGE.format("many") + "?from=oldest"))
    assert "2 of 2 messages shown" in page or "3 of 3 messages shown" in page
    assert "more than" in page


def test_a_page_shows_the_first_properties_and_counts_the_others(
    browser: Browser, raw: RawClient
) -> None:
    properties = [{"key": f"key-{n}", "value": "v" * 1000} for n in range(300)]
    publish(raw, "properties", b"x", properties=properties)
    page = words(browser.page(PAGE.format("properties")))
    assert "key-3 vvv" in page and "key-4 vvv" not in page
    assert "296 more, too many or too long" in page
    exported = browser.open(PAGE.format("properties") + "/export").json()
    assert len(exported["properties"]) + exported["omitted"] == 300


def test_a_message_of_a_batch_with_too_much_metadata_is_not_parsed(
    browser: Browser, raw: RawClient
) -> None:
    single = pb.SingleMessageMetadata(payload_size=0)
    single.properties.extend([pb.KeyValue(key="k", value="")] * 300_000)
    metadata = single.SerializeToString()
    plain = struct.pack(">I", len(metadata)) + metadata
    compressed = zlib.compress(plain)
    publish(
        raw,
        "odd-batch",
        compressed,
        compression=pb.ZLIB,
        uncompressed_size=len(plain),
        num_messages_in_batch=1,
    )
    page = words(browser.page(PAGE.format("odd-batch")))
    assert f"the first 4,096 of {len(plain):,} bytes" in page


def test_a_page_that_would_be_too_large_is_refused(
    browser: Browser, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(raw, "shown", b"x" * 4000)
    whole = browser.page(PAGE.format("shown"))
    monkeypatch.setattr(visit, "MOST_CHARS", len(whole) - 1000)
    answer = browser.open(PAGE.format("shown"))
    assert (answer.status_code, "too large" in words(answer.text)) == (413, True)


# -- markers


def test_of_an_entry_with_many_markers_only_the_newest_is_parsed(
    browser: Browser, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed, parse = list[bytes](), pipelines.json_of

    def counted(data: bytes) -> Any:
        parsed.append(data)
        return parse(data)

    monkeypatch.setattr(pipelines, "json_of", counted)
    control = "spark-query-batches"
    raw.subscribe(control, subscription="query-q")
    markers = [{"query_id": "q", "batch_id": n, "ends": {}} for n in range(60)]
    batch = batch_of(*(json.dumps(each).encode() for each in markers))
    publish(raw, control, **batch)
    page = words(browser.page(f"/console/pipelines?control=public/default/{control}"))
    assert f"q persistent://public/default/{control} 59 " in page
    assert len(parsed) == 1


def test_a_marker_of_too_many_parts_is_no_marker(browser: Browser, raw: RawClient) -> None:
    control = "spark-query-parts"
    raw.subscribe(control, subscription="query-q")
    marker = {"query_id": "q", "batch_id": 1, "ends": {f"{n:x}": {} for n in range(40_000)}}
    publish(raw, control, **batch_of(json.dumps(marker).encode()))
    page = words(browser.page(f"/console/pipelines?control=public/default/{control}"))
    assert "has no marker" in page


# -- notices


def test_a_notice_and_a_refusal_keep_the_beginning_of_a_long_text() -> None:
    notices = Notices()
    notices.leave("browser", Notice("😀" + "a" * 1_000_000, failed=True))
    notice = notices.take("browser")
    assert notice is not None and len(notice.text) == 1001 and notice.failed
    assert len(Refused(412, "x" * 1_000_000).reason) == 1001
    assert Refused(412, "short").reason == "short"


# -- files


def a_message(data: bytes | None, place: str = "1:2") -> Message:
    return Message(
        place=place,
        data=data,
        size_bytes=len(data or b""),
        key=None,
        properties={},
        omitted=0,
        producer="p",
        sequence_id="0",
        published_ms=None,
        event_ms=None,
        schema_version=None,
        encrypted=False,
        uncommitted=False,
        aborted=False,
        marker=False,
        transaction="",
        chunk="",
    )


def written(lines: Lines, *messages: Message) -> tuple[bytes, int]:
    """What was written, and the size of the largest piece."""

    async def run() -> list[bytes]:
        found: AsyncIterator[bytes] = lines.of(messages)
        return [piece async for piece in found]

    pieces = asyncio.run(run())
    return b"".join(pieces), max(map(len, pieces))


@pytest.mark.parametrize(
    "text", ["", "a", "é€😀" * 30_000, "x" + "😀" * 40_000, '"\\\0' * 50_000, "a" * 200_000]
)
def test_a_text_is_written_whole_in_pieces(text: str) -> None:
    found, largest = written(Lines(True, 10_000_000), a_message(text.encode()))
    assert json.loads(found)["value"] == text
    assert largest < 500_000


@pytest.mark.parametrize("data", [b"\xff" * 200_000, "é".encode() * 60_000 + b"\xc3"])
def test_what_is_no_text_is_written_in_base64(data: bytes) -> None:
    found, _ = written(Lines(True, 10_000_000), a_message(data))
    assert base64.b64decode(json.loads(found)["valueBase64"]) == data


def test_a_text_that_fits_no_file_is_written_in_base64() -> None:
    data = bytes(200_000)  # as text, six bytes for each
    found, _ = written(Lines(True, 1_000_000), a_message(data))
    assert base64.b64decode(json.loads(found)["valueBase64"]) == data


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_file_ends_before_the_message_that_does_not_fit(as_json: bool, size: int) -> None:
    one = a_message(b"x" * size)
    (single, _) = written(Lines(as_json, 10_000_000), one)
    lines = Lines(as_json, 3 * len(single) - 1)
    found, _ = written(lines, one, one, one, one)
    assert (found, lines.is_full) == (2 * single, True)
    exactly = Lines(as_json, 3 * len(single))
    assert (written(exactly, one, one, one)[0], exactly.is_full) == (3 * single, False)
