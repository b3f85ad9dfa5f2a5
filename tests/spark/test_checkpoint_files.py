"""A driver's files in Spark's checkpoint, through Hadoop's file systems; no broker."""

import pytest

from pybroker.base.names import TxnId
from pybroker.spark.checkpoint import Checkpoint, LeftOpen

pytestmark = pytest.mark.spark


def test_a_driver_that_died_as_it_noted_its_transaction_keeps_nobody_from_going_on(spark, tmp_path):
    """That transaction was new and unused; at worst it times out."""
    checkpoint = Checkpoint(spark, str(tmp_path))
    assert checkpoint.open_transaction() is None
    checkpoint.record_transaction(LeftOpen(TxnId(1, 2)))
    assert checkpoint.open_transaction() == LeftOpen(TxnId(1, 2))
    [noted] = tmp_path.glob("pybroker-*")
    for torn in (b"", b"[1, ", b"[1, 3"):  # with the old Hadoop checksum
        noted.write_bytes(torn)
        assert checkpoint.open_transaction() is None
    (tmp_path / f".{noted.name}.crc").unlink()
    assert checkpoint.open_transaction() is None
    checkpoint.record_transaction(LeftOpen(TxnId(3, 4), "3-4-row", "id", 7))
    assert checkpoint.open_transaction() == LeftOpen(TxnId(3, 4), "3-4-row", "id", 7)
