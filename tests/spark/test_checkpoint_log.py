import json

import pytest

from pybroker.base.errors import MetadataError, NotAllowed
from pybroker.spark.checkpoint import Checkpoint
from pybroker.spark.offsets import CursorName, Position, SourceOffset, Span

TOPIC = "persistent://public/default/in"
FILES_SOURCE = '{"logOffset":3}'


def line(after, to, subscription="s", topic=TOPIC):
    span = Span(Position(3, after), Position(3, to))
    return json.dumps(SourceOffset(subscription, {topic: span}).to_json())


class FakeFiles(Checkpoint):
    """A checkpoint without Hadoop's file systems."""

    def __init__(self, **files):
        self._location = "/checkpoint"
        self.texts = {f"offsets/{name[1:]}": text for name, text in files.items()}

    def _read(self, name):
        return self.texts.get(name)


def offsets(*lines):
    return "\n".join(["v1", '{"batchWatermarkMs":0}', *lines])


def test_a_batch_reads_what_its_sources_moved():
    checkpoint = FakeFiles(_0=offsets(line(-1, 4), "-"), _1=offsets(line(4, 9), FILES_SOURCE))
    work = checkpoint.work("query", 1)
    assert work.progress == {CursorName(TOPIC, "s"): Span(Position(3, 4), Position(3, 9))}
    assert (work.query_id, work.batch_id) == ("query", 1)


def test_a_source_that_did_not_move_reads_nothing():
    checkpoint = FakeFiles(_0=offsets(line(-1, 4)), _1=offsets(line(-1, 4)))
    assert checkpoint.work("query", 1).progress == {}


def test_the_digest_tells_other_sources_ends():
    one = FakeFiles(_0=offsets(FILES_SOURCE)).work("query", 0)
    same = FakeFiles(_0=offsets(FILES_SOURCE)).work("query", 0)
    other = FakeFiles(_0=offsets('{"logOffset":4}')).work("query", 0)
    assert one.sources == same.sources != other.sources


def file_of(path, batch_id):
    return json.dumps({"path": path, "timestamp": 1, "batchId": batch_id})


def test_the_digest_tells_other_files_of_the_same_batch():
    def files(place, *lines):
        checkpoint = FakeFiles(_0=offsets("-", FILES_SOURCE))
        checkpoint.texts[f"sources/1/{place}"] = "\n".join(["v1", *lines])
        return checkpoint.work("query", 0).files

    alone = files("3", file_of("b", 3), file_of("c", 3))
    assert alone == files("3.compact", file_of("a", 2), file_of("c", 3), file_of("b", 3))
    assert alone != files("3", file_of("b", 3), file_of("d", 3))
    assert FakeFiles(_0=offsets("-")).work("query", 0).files == ""


def test_two_sources_on_one_cursor_are_refused():
    checkpoint = FakeFiles(_0=offsets(line(-1, 4), line(-1, -1)))
    with pytest.raises(NotAllowed, match="give each source its own subscription"):
        checkpoint.work("query", 0)


def test_two_sources_on_one_topic_with_two_subscriptions_are_fine():
    checkpoint = FakeFiles(_0=offsets(line(-1, 4), line(-1, 9, "t")))
    assert len(checkpoint.work("query", 0).progress) == 2


def test_an_offset_log_of_another_version_is_refused():
    with pytest.raises(
        MetadataError, match="which this version of pybroker cannot read: it supports v1 and v2"
    ):
        FakeFiles(_0="v9\n{}\n").work("query", 0)


def named_offsets(**lines):
    named = [f"{name.strip('_')}:{line}" for name, line in lines.items()]
    return "\n".join(["v2", '{"batchWatermarkMs":0}', *named])


def test_the_offset_log_of_named_sources_is_read_whatever_their_order():
    checkpoint = FakeFiles(
        _0=named_offsets(moves=line(-1, 4), stands=line(-1, 4, "t")),
        _1=named_offsets(files=FILES_SOURCE, stands=line(-1, 4, "t"), moves=line(4, 9)),
    )
    assert checkpoint.work("query", 1).progress == {
        CursorName(TOPIC, "s"): Span(Position(3, 4), Position(3, 9))
    }


def test_a_query_goes_on_when_its_offset_log_becomes_one_of_names():
    """Spark numbers sources without names."""
    checkpoint = FakeFiles(
        _0=offsets(line(-1, 4), line(-1, 4, "t")),
        _1=named_offsets(_0=line(4, 9), _1=line(-1, 4, "t")),
    )
    assert checkpoint.work("query", 1).progress == {
        CursorName(TOPIC, "s"): Span(Position(3, 4), Position(3, 9))
    }


def test_only_where_every_source_has_a_cursor_of_its_own_a_new_checkpoint_goes_on_there():
    follower = json.dumps(SourceOffset("s", {}, follows=True).to_json())
    for lines, goes_on in (
        ([line(-1, 4)], True),
        ([line(-1, 4), line(-1, 4, topic="persistent://public/default/other")], True),
        ([line(-1, 4), FILES_SOURCE], False),
        ([line(-1, 4), follower], False),
        ([line(-1, 4), "-"], False),
    ):
        assert FakeFiles(_0=offsets(*lines)).work("query", 0).goes_on_at_cursor is goes_on
