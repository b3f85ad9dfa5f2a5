"""`pybroker check` on the remains of crashes: sound directories pass, damaged ones are named."""

import asyncio
import logging
import random
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
from bugs import BUGS
from damaging import Files, counted, damaged
from sim_seed import OUTCOMES_PER_CHUNK, Simulation

from pybroker.base.configuration.config import BrokerConfig
from pybroker.checking.directory import Report, check
from pybroker.transaction.coordinator import outcome_window

FIRST_SEED = 700_000_000
IMAGES = 200


def images_of(
    seed: int, bug: AbstractContextManager[object], features: tuple[str, ...] | None
) -> list[Files]:
    """The disk at each start of the broker, and in the end."""
    with bug:
        simulation = Simulation(seed, features)
        disk, found = simulation.broker.disk, list[Files]()
        simulation.broker.before_start.append(lambda: found.append(disk.copy()))
        simulation.run()
        return [image for image in (*found, disk.copy()) if image]


def images(
    bug: str | None = None, features: tuple[str, ...] | None = None
) -> Iterator[tuple[int, Files]]:
    """Of `features`, or of those that each seed draws."""
    seed = FIRST_SEED
    while True:
        for image in images_of(seed, BUGS[bug]() if bug else nullcontext(), features):
            yield seed, image
        seed += 1


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def checked(path: Path, files: Files) -> Report:
    shutil.rmtree(path, ignore_errors=True)
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    with patch.object(outcome_window, "CHUNK_IDS", OUTCOMES_PER_CHUNK):
        return asyncio.run(check(path, BrokerConfig()))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_crashes_leave_is_whole_and_what_is_damaged_is_named(tmp_path: Path) -> None:
    rng, transactions = random.Random(1), 0
    for number, (seed, image) in enumerate(images()):
        if number == IMAGES:
            break
        whole = checked(tmp_path / "d", image)
        assert whole.damage == [], seed
        transactions += whole.transactions
        if any(counted(image).values()):
            what, files = damaged(image, rng)
            after = checked(tmp_path / "d", files)
            assert set(after.findings) - set(whole.findings), (seed, what)
    assert transactions > 1000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_marker_that_says_something_else_than_the_coordinator_is_named(tmp_path: Path) -> None:
    for seed, image in images("end-believed-from-anybody", ("hostility",)):
        assert seed < FIRST_SEED + 50
        if damage := checked(tmp_path / "d", image).damage:
            assert "committed here" in damage[0].what or "aborted here" in damage[0].what
            break
