"""Finding a message's id by its index, if the broker adds indexes."""

from pathlib import Path

import httpx
from raw_client import RawClient

import pybroker.testing
from pybroker.broker.persistent.entry_metadata import INDEX

PATH = "/admin/v2/persistent/public/default/orders"
BY_INDEX = f"{PATH}/getMessageIdByIndex"


def test_a_message_is_found_by_its_number() -> None:
    with (
        pybroker.testing.broker(http=True, broker_entry_metadata_interceptors=(INDEX,)) as broker,
        RawClient(broker.service_url) as raw,
        httpx.Client(base_url=broker.admin_url) as admin,
    ):
        raw.create_producer("persistent://public/default/orders")
        raw.publish(b"a", 0)
        raw.publish(b"bcd", 1, send_fields={"num_messages": 3}, num_messages_in_batch=3)
        raw.publish(b"e", 4)
        found = [admin.get(BY_INDEX, params={"index": index}).json() for index in range(5)]
        assert [each["entryId"] for each in found] == [0, 1, 1, 1, 2]
        assert admin.get(BY_INDEX, params={"index": 5}).status_code == 404
        assert admin.get(BY_INDEX, params={"index": -1}).status_code == 404


def test_messages_without_numbers_hide_none_that_have_one(tmp_path: Path) -> None:
    numbered: tuple[str, ...] = (INDEX,)
    for times, interceptors in enumerate(((), numbered, (), (), numbered)):
        with (
            pybroker.testing.broker(
                http=True, data_dir=tmp_path, broker_entry_metadata_interceptors=interceptors
            ) as broker,
            RawClient(broker.service_url) as raw,
            httpx.Client(base_url=broker.admin_url) as admin,
        ):
            raw.create_producer("persistent://public/default/orders")
            for number in range(5):
                raw.publish(b"x", 5 * times + number)
            if interceptors:
                found = [admin.get(BY_INDEX, params={"index": each}).json() for each in (0, 3)]
                assert [(each["ledgerId"], each["entryId"]) for each in found] == [(1, 0), (1, 3)]


def test_without_numbers_the_refusal_says_how_to_have_them(admin: httpx.Client, topic: str) -> None:
    refusal = admin.get(f"/admin/v2/persistent/{topic}/getMessageIdByIndex?index=0")
    assert refusal.status_code == 412
    assert "brokerEntryMetadataInterceptors" in refusal.json()["reason"]


def test_metadata_is_migrated_nowhere(admin: httpx.Client) -> None:
    path = "/admin/v2/metadata/migration"
    assert admin.get(f"{path}/status").json()["phase"] == "NOT_STARTED"
    assert admin.post(f"{path}/start").status_code == 400
    refusal = admin.post(f"{path}/start", params={"target": "oxia://there:6648/default"})
    assert "data directory" in refusal.json()["reason"]
