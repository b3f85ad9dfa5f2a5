"""A simulated machine, bookies and ZooKeeper."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bookkeeper"))

from sim_ledger import LedgerLife


@pytest.fixture
def life() -> Iterator[LedgerLife]:
    life = LedgerLife(0)
    life.world.sleep(5.0)  # the bookies register
    yield life
    life.world.close()
