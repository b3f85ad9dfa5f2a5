"""A small Spark works off a small backlog; `make spark-backlog` uses ten million rows."""

import pytest
import spark_backlog

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

ROWS = 120_000
LIMIT = 40_000


@pytest.mark.parametrize("kind", spark_backlog.KINDS)
def test_a_backlog_is_worked_off_by_steps_each_row_once(tmp_path, kind):
    outcome = spark_backlog.work_off(ROWS, kind, tmp_path, LIMIT)
    assert (outcome.missing, outcome.doubled) == (0, 0)
    if kind != "batch":
        assert list(outcome.rows_of_batches) == [LIMIT] * (ROWS // LIMIT)
