"""Counts saved by several runs."""

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from sim_counts import Chunk, save, table


def test_runs_at_the_same_time_add_to_one_file(tmp_path):
    path = tmp_path / "counts.json"
    chunks = [Chunk(20, ["one"], Counter({"crash": 3})), Chunk(5, [], Counter({"stop": 1}))] * 10
    # A fork would copy locks that threads of other tests' brokers hold.
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(save, path), chunks))
    lines = table([path]).splitlines()
    assert "| seeds | 250 |" in lines
    assert "| seeds that failed | 10 |" in lines
    assert "| crash | 30 |" in lines
    assert "| stop | 10 |" in lines


def test_a_table_adds_files_up(tmp_path):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        save(path, Chunk(1000, [], Counter()))
    assert "| seeds | 2,000 |" in table(paths).splitlines()
    assert "| seeds that failed | 0 |" in table(paths).splitlines()
