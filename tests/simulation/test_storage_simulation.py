"""Managed ledgers over a disk that keeps only synced data lose no acknowledged entry."""

import os
import secrets

import pytest
from sim_full_storage import FullStorageSimulation
from sim_relaxed_storage import RelaxedStorageSimulation
from sim_storage import StorageSimulation

SEEDS = int(os.environ.get("PYBROKER_SIM_STORAGE_SEEDS", "150"))
RELAXED_ONCE_FAILED = (342,)  # a ledger's file was gone, and its deletion was undone
# A confirmed property was gone after the crash; acknowledgements just after deleted ledgers were
# forgotten by the second restart.
ONCE_FAILED = (878700103, 264115497)
# Ledgers were deleted before older ones, whose trim had been refused; commits waited for a
# checkpoint that was never woken.
FULL_ONCE_FAILED = (544003750, 1482)


@pytest.mark.slow
def test_fresh_seeds_keep_every_storage_promise():
    start = secrets.randbelow(10**9)
    print(f"storage seeds {start} to {start + SEEDS - 1}")
    for seed in range(start, start + SEEDS):
        assert StorageSimulation(seed).run() == [], f"StorageSimulation({seed}).run()"


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_seeds_that_once_failed_stay_repaired(seed):
    assert StorageSimulation(seed).run() == []


@pytest.mark.slow
def test_fresh_seeds_on_a_disk_that_fills_up_keep_every_storage_promise():
    start = secrets.randbelow(10**9)
    print(f"storage seeds {start} to {start + SEEDS // 3 - 1}, on a disk that fills up")
    for seed in (*FULL_ONCE_FAILED, *range(start, start + SEEDS // 3)):
        assert FullStorageSimulation(seed).run() == [], f"FullStorageSimulation({seed}).run()"


@pytest.mark.slow
def test_with_relaxed_durability_what_a_power_cut_leaves_opens_and_reads():
    start = secrets.randbelow(10**9)
    print(f"storage seeds {start} to {start + SEEDS - 1}, with relaxed durability")
    for seed in (*RELAXED_ONCE_FAILED, *range(start, start + SEEDS)):
        simulation = RelaxedStorageSimulation(seed)
        assert simulation.run() == [], f"RelaxedStorageSimulation({seed}).run()"
