"""A few rounds of kill -9 on a standalone cluster; `make spark-kills` runs thirty of each kind."""

import pytest
import spark_kill_rounds

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(("kind", "source"), [("sink", "files"), ("foreach", "pulsar")])
def test_each_row_once_and_each_group_whole_whichever_process_dies(tmp_path, kind, source):
    books = spark_kill_rounds.run(2, kind, source, seed=7, folder=tmp_path)
    assert (books["missing"], books["doubled"], books["torn"]) == (0, 0, 0)
