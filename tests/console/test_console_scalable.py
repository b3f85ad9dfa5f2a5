"""The page of a scalable topic: its segments are drawn and listed, split, merged, deleted."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from browsing import Browser, tile, words

import pybroker.testing
from pybroker.admin.shapes.scalable import shown
from pybroker.base.names import any_topic
from pybroker.broker.scalable.record import TopicRecord, merged, migrated, new_record, pruned, split
from pybroker.client import Client
from pybroker.console.pages.topics.segments import HEIGHT, Drawing, drawing
from pybroker.testing import RunningBroker

S = "/admin/v2/scalable/public/default"


def drawn(record: TopicRecord, **backlogs: int) -> Drawing:
    said: Any = shown(record)["segments"].values()
    return drawing(said, {int(name.removeprefix("s")): n for name, n in backlogs.items()})


def place(of: Drawing, number: int) -> tuple[float, float, float, float]:
    """Left, right, top, bottom, as shares."""
    (box,) = (each for each in of.boxes if each.number == number)
    left, width = (float(each.rstrip("%")) / 100 for each in (box.x, box.width))
    top, height = (float(each) / HEIGHT for each in (box.y, box.height))
    return left, left + width, top, top + height


# -- the drawing


def test_children_begin_where_their_parent_ends_and_share_its_range() -> None:
    of = drawn(split(new_record(2, 0), 0, 0))
    assert place(of, 0) == pytest.approx((0, 1 / 3, 0, 0.5), abs=0.001)
    assert place(of, 2) == pytest.approx((1 / 3, 1, 0, 0.25), abs=0.001)
    assert place(of, 3) == pytest.approx((1 / 3, 1, 0.25, 0.5), abs=0.001)
    assert place(of, 1) == pytest.approx((0, 1, 0.5, 1), abs=0.001)
    assert [epoch for epoch, _ in of.epochs] == [0, 1]


def test_a_sealed_segment_shows_whether_somebody_still_reads_it() -> None:
    record = merged(split(new_record(1, 0), 0, 0), 1, 2, 0)
    kinds = {each.number: each.kind for each in drawn(record, s1=5).boxes}
    assert kinds == {0: "sealed", 1: "waiting", 2: "sealed", 3: "active"}
    assert "backlog 5" in next(each.title for each in drawn(record, s1=5).boxes if each.number == 1)


def test_epochs_in_which_no_segment_came_or_went_take_no_room() -> None:
    record = pruned(split(new_record(1, 0), 0, 0), [0])
    of = drawn(split(record, 1, 0))
    assert [epoch for epoch, _ in of.epochs] == [1, 3]


def test_of_many_epochs_the_last_are_drawn() -> None:
    record = new_record(1, 0)
    for _ in range(60):
        record = split(record, record.active[0].id, 0)
        record = merged(record, *(each.id for each in record.active[:2]), 0)
    of = drawn(record)
    assert len(of.epochs) == 40 and of.unshown == len(record.segments) - len(of.boxes) > 0
    assert all(0 <= float(each.x.rstrip("%")) <= 100 for each in of.boxes)


def test_the_partitions_of_an_ordinary_topic_come_before_the_first_epoch() -> None:
    of = drawn(migrated(any_topic("topic://a/b/c"), 2, 0))
    assert place(of, 0) == pytest.approx((0, 1 / 3, 0, 0.5), abs=0.001)
    assert place(of, 1) == pytest.approx((0, 1 / 3, 0.5, 1), abs=0.001)
    assert place(of, 2) == pytest.approx((1 / 3, 1, 0, 0.5), abs=0.001)
    assert "persistent://a/b/c-partition-0" in of.boxes[0].title


# -- the page


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as broker:
        yield broker


@pytest.fixture
def browser(plain: RunningBroker) -> Browser:
    return Browser(plain.admin_url)


@pytest.fixture
def url(browser: Browser, plain: RunningBroker) -> Iterator[str]:
    """The page of a new topic of two segments, with one message for one subscription."""
    assert browser.http.put(f"{S}/orders", params={"numInitialSegments": 2}).status_code == 204
    browser.http.put(f"{S}/orders/subscriptions/billing")
    with (
        Client(plain.service_url) as client,
        client.create_producer("segment://public/default/orders/0000-7fff-0") as producer,
    ):
        producer.send(b"x")
    yield "/console/topics/topic/public/default/orders"
    browser.http.delete(f"{S}/orders", params={"force": "true"})


def test_a_topic_is_listed_with_its_figures(browser: Browser, url: str) -> None:
    page = browser.page("/console/topics?figures=1")
    assert f'href="{url}"' in page
    assert re.search(r"topic://public/default/orders scalable 0 0 1 \d+ B 1 0 0", words(page))
    assert (
        browser.open("/console/topics/go?topic=topic://public/default/orders")
        .headers["location"]
        .endswith(url)
    )


def test_segments_are_drawn_and_listed(browser: Browser, url: str) -> None:
    page = browser.do(f"{url}/split", url, segment="0", back=url)
    assert "Segment 0 was split" in words(page)
    assert len(re.findall(r'<rect class="\w+" x=', page)) == 4
    assert '<rect class="waiting"' in page
    assert re.search(r"0 0000-7fff sealed – 2, 3", words(page))
    assert re.search(r"billing stream 1 0 0", words(page))
    assert (tile(page, "Active segments"), tile(page, "Sealed segments")) == ("3", "1")
    page = browser.do(f"{url}/merge", url, segment="3", other="2", back=url)
    assert "Segments 3 and 2 were merged" in words(page)
    assert tile(page, "Active segments") == "2"


def test_what_cannot_be_done_is_explained(browser: Browser, url: str) -> None:
    assert "no segment 7" in words(browser.do(f"{url}/split", url, segment="7", back=url))
    assert "Choose a segment" in words(browser.do(f"{url}/split", url, segment="x", back=url))
    said = words(browser.do(f"{url}/merge", url, segment="1", other="", back=url))
    assert "Choose two segments" in said
    assert browser.open(f"{url}x").status_code == 404


def test_a_deletion_is_confirmed(browser: Browser, url: str) -> None:
    said = words(browser.do(f"{url}/delete", url, confirm="", back=url))
    assert "Nothing was done" in said
    said = words(browser.do(f"{url}/delete", url, confirm="orders", back=url))
    assert "topic://public/default/orders was deleted" in said
