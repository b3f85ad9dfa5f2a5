"""A short run of `make cluster-kill-rounds ARGS=--kafka`."""

from pathlib import Path

import pytest
from kafka_kill_rounds import run

ROUNDS = 2  # a bookie, and a broker


@pytest.mark.slow
def test_kafkas_transactions_survive_kill_9_of_bookies_and_brokers(tmp_path: Path) -> None:
    assert run(ROUNDS, seed=1, folder=tmp_path, say=print) == []
