"""A short run of `make kill-rounds`."""

from pathlib import Path

import pytest
from kill_rounds import run

ROUNDS = 6


@pytest.mark.slow
def test_what_was_promised_survives_kill_9(tmp_path: Path) -> None:
    assert run(ROUNDS, seed=1, folder=tmp_path, say=print) == []
