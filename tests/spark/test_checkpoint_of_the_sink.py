"""What the sink reads of a checkpoint without Spark's JVM."""

import json
import logging

import pytest

from pybroker.spark.writing import planned as module
from pybroker.spark.writing.planned import planned

QUERY = "26533cd0-9daf-4751-a442-bf199e1dee5a"


@pytest.fixture
def checkpoint(tmp_path):
    root = tmp_path / "a check%20point"
    (root / "offsets").mkdir(parents=True)
    (root / "metadata").write_text(json.dumps({"id": QUERY}))
    (root / "offsets" / "3").write_text('v1\n{"batchTimestampMs":5}\n{"topic":7}')
    return root


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_a_local_checkpoint_is_read_in_each_form_of_its_path(checkpoint, form):
    found = planned(form.format(checkpoint), QUERY, 3)
    assert found is not None
    assert found.sources == {"0": '{"topic":7}'}


def test_a_checkpoint_elsewhere_is_read_through_arrow(checkpoint, monkeypatch):
    """A local file system stands for the remote one."""
    import pyarrow.fs

    def from_uri(uri):
        assert uri == "s3://bucket/ledger"
        return pyarrow.fs.LocalFileSystem(), str(checkpoint)

    class FileSystem:
        pass

    FileSystem.from_uri = staticmethod(from_uri)
    monkeypatch.setattr(pyarrow.fs, "FileSystem", FileSystem)
    found = planned("s3a://bucket/ledger", QUERY, 3)
    assert found is not None
    assert found.sources == {"0": '{"topic":7}'}


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("{}/absent", "it is not that of query"),
        ("dbfs://{}", "dbfs"),
        ("{}", "holds no offsets of batch 4"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_a_warning_and_no_error(
    checkpoint, location, reason, caplog
):
    module._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert planned(location.format(checkpoint), QUERY, 4) is None
    [record] = caplog.records
    assert reason in record.getMessage()
    assert "never restore an older copy" in record.getMessage()


@pytest.mark.parametrize("metadata", ["", "[]", "torn {", '"id"'])
def test_metadata_that_says_nothing_is_that_of_no_query(checkpoint, metadata):
    (checkpoint / "metadata").write_text(metadata)
    assert planned(str(checkpoint), QUERY, 3) is None


def test_another_querys_checkpoint_is_not_taken_for_its_own(checkpoint):
    assert planned(str(checkpoint), "another", 3) is None
