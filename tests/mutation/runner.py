"""Runs tests against mutants within pytest, each mutant in a forked process: tests are collected
once.

A child replaces the code of one function and runs the tests that cover it until one fails; if all
pass, it runs the simulation. Nothing is imported again, so most mutants take a fraction of a
second.
"""

import enum
import gc
import logging
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from coverage_map import Covered, measure
from hypothesis import HealthCheck, Phase, settings
from live_code import Noting, live_functions, noting_codes, put_in_place
from mutants import Mutant

HANG_FACTOR: Final = 10  # times the duration of a test without a mutant
HANG_EXTRA_S: Final = 5.0
SEED_S: Final = 5.0  # for one of the simulation's seeds
MAX_GROWTH_BYTES: Final = 1 << 30  # of a child: an endless loop may fill memory


class Result(enum.IntEnum):
    """The exit code of a child."""

    SURVIVED = 10
    KILLED_BY_TEST = 11
    KILLED_BY_SIMULATION = 12
    HUNG = 13
    UNUSABLE = 14  # the changed code cannot replace the original
    UNCOVERED = 15  # no test runs the function

    @property
    def killed(self) -> bool:
        return self in (Result.KILLED_BY_TEST, Result.KILLED_BY_SIMULATION, Result.HUNG)


@dataclass(slots=True)
class Child:
    mutant: Mutant
    folder: Path


class Mutating:
    """A pytest plugin that runs the session's tests against mutants instead of once."""

    def __init__(
        self,
        root: Path,
        choose: Callable[[set[str]], list[Mutant]],
        told: Callable[[Mutant, Result], None],
        jobs: int,
        budget_s: float,
        seeds: int,
        map_file: Path,
    ) -> None:
        self._root = root
        self._choose = choose
        self._told = told
        self._jobs = jobs
        self._budget_s = budget_s
        self._seeds = seeds
        self._map_file = map_file

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        settings.register_profile(
            "mutation",
            phases=(Phase.explicit, Phase.generate),  # a failure suffices; it need not be minimal
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mutation")
        self._functions = live_functions(self._root)
        self._items = {item.nodeid: item for item in session.items}
        self._covered = self._measured(session)
        gc.collect()
        gc.freeze()  # otherwise garbage collections in the children would copy all memory
        mutants = self._choose({path for path, _, _ in self._functions})
        for mutant, result in self._outcomes(mutants):
            self._told(mutant, result)
        return True

    def _measured(self, session: pytest.Session) -> Covered:
        """The coverage in the map file, completed with tests that are not in it yet.

        These tests run in children: this process stays free of threads and of leftovers of tests.
        """
        known = Covered.load(self._map_file) if self._map_file.exists() else Covered({}, {})
        items = [item for name, item in self._items.items() if name not in known.seconds]
        if not items:
            return known
        codes = noting_codes(self._root, self._functions)
        found = Path(tempfile.mkdtemp(prefix="mutation-"))
        children: list[int] = []
        for job in range(self._jobs):
            child = os.fork()
            if not child:
                own = found / str(job)
                own.mkdir()
                with as_child(own, session.config):
                    outcome = Watch(session.config)
                    share = items[job :: self._jobs]
                    noting = Noting(self._functions, codes)
                    measure(share, outcome.passes, noting).save(found / f"{job}.json")
            children.append(child)
        for job, child in enumerate(children):
            os.waitpid(child, 0)
            known.add(Covered.load(found / f"{job}.json"))
        known.save(self._map_file)
        shutil.rmtree(found)
        return known

    def _outcomes(self, mutants: list[Mutant]) -> Iterator[tuple[Mutant, Result]]:
        children: dict[int, Child] = {}
        waiting = list(reversed(mutants))
        while waiting or children:
            while waiting and len(children) < self._jobs:
                mutant = waiting.pop()
                tests = self._covered.tests_of((mutant.path, mutant.function), self._budget_s)
                tests = [test for test in tests if test in self._items]
                if tests:
                    self._start(mutant, tests, children)
                else:
                    yield mutant, Result.UNCOVERED
            yield from self._ended(children)

    def _start(self, mutant: Mutant, tests: list[str], children: dict[int, Child]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        process = os.fork()
        if not process:
            self._live_as(mutant, tests, folder)
        children[process] = Child(mutant, folder)

    def _live_as(self, mutant: Mutant, tests: list[str], folder: Path) -> None:
        os.setsid()
        items = [self._items[test] for test in tests]
        with as_child(folder, items[0].config):
            place = mutant.path, mutant.function, mutant.first_line
            functions = self._functions.get(place, [])
            if not put_in_place(functions, mutant.code):
                os._exit(Result.UNUSABLE)
            watch = Watch(items[0].config)
            for item in items:
                die_after(HANG_EXTRA_S + HANG_FACTOR * self._covered.seconds[item.nodeid])
                if not watch.passes(item):
                    os._exit(Result.KILLED_BY_TEST)
            if not simulation_passes(self._seeds):
                os._exit(Result.KILLED_BY_SIMULATION)
            os._exit(Result.SURVIVED)

    def _ended(self, children: dict[int, Child]) -> Iterator[tuple[Mutant, Result]]:
        select.select([], [], [], 0.005)
        for process, child in list(children.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended:
                continue
            del children[process]
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)  # processes that its tests may have started
            shutil.rmtree(child.folder, ignore_errors=True)
            yield child.mutant, result_of(os.waitstatus_to_exitcode(status))


class Watch:
    """Runs tests one by one, and records failures."""

    def __init__(self, config: pytest.Config) -> None:
        self._failed = False
        config.pluginmanager.register(self)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed

    def passes(self, item: pytest.Item) -> bool:
        self._failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self._failed


class as_child:
    """A forked process: it has its own folder and no output, and never returns."""

    def __init__(self, folder: Path, config: pytest.Config) -> None:
        self._folder = folder
        self._config = config

    def __enter__(self) -> None:
        silence = os.open(os.devnull, os.O_RDWR)
        for descriptor in (1, 2):
            os.dup2(silence, descriptor)
        plugins = self._config.pluginmanager
        plugins.unregister(plugins.getplugin("terminalreporter"))
        self._config._tmp_path_factory._basetemp = self._folder  # type: ignore[attr-defined]
        tempfile.tempdir = str(self._folder)
        limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + MAX_GROWTH_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        logging.disable(logging.NOTSET)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        os._exit(0 if kind is None else Result.KILLED_BY_TEST)


def result_of(exit_code: int) -> Result:
    if exit_code == -signal.SIGALRM:
        return Result.HUNG
    return Result(exit_code) if exit_code in list(Result) else Result.KILLED_BY_TEST


def die_after(seconds: float) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def simulation_passes(seeds: int) -> bool:
    sys.path.insert(0, str(Path(__file__).parents[1] / "simulation"))
    from sim_seed import Simulation

    logging.disable(logging.CRITICAL)
    die_after(HANG_EXTRA_S + SEED_S * seeds)
    return not any(Simulation(seed).run().violations for seed in range(seeds))
