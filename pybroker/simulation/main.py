"""`pybroker simulate MODULE:FUNCTION`: simulates seeds in several processes until a promise breaks.

All processes have the same hash seed, so that a set of strings has the same order in each. They
import the module while time and randomness are simulated, so that `from time import time` is
simulated too.
"""

import argparse
import contextlib
import gc
import importlib
import importlib.util
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pybroker.base import verdict_files
from pybroker.base.arguments import Parser
from pybroker.base.verdict_files import Verdict
from pybroker.simulation.coverage import Coverage
from pybroker.simulation.declaring import ScenarioError, Simulation
from pybroker.simulation.plan import described
from pybroker.simulation.report import kept, replay_options, report
from pybroker.simulation.run import Outcome, run_seed
from pybroker.simulation.shrinking import shrunk
from pybroker.simulation.virtual import virtual_time

_TOOL: Final = "pybroker simulate"
EXIT_BROKEN: Final = 1
EXIT_CANNOT_RUN: Final = 2
EXIT_INTERRUPTED: Final = 130
_MOST_JOBS: Final = 256
_CHUNK: Final = 10  # seeds that a process gets at a time
_TELLS_TIME_FROM: Final = 2 * _CHUNK  # seeds; the first ones are slower
_SAY_EVERY_S: Final = 5.0  # without a terminal
_SEED_LIMIT_S: Final = 60.0  # in real time; a loop without an await would never end
_AGAIN_AFTER_S: Final = 2.0  # for code that catches the first exception
_MOST_CAUGHT: Final = 3
_GARBAGE_THRESHOLD: Final = 100_000  # objects; garbage is collected after each seed anyway


class Hung(KeyboardInterrupt):
    """Over the limit of real time. A KeyboardInterrupt, because asyncio does not catch it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The results of some seeds, in order, up to the first that failed."""

    seeds: int
    failed: Outcome | None
    judged: bool  # there was an output, or a check
    coverage: Coverage


def main(arguments: list[str]) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.faults is not None and options.seed is None:
        parser.error("--faults chooses among the faults of one seed: name it with --seed")
    os.environ.setdefault("PYTHONHASHSEED", "0")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # must end all processes too
    jobs = 1 if options.seed is not None else options.jobs
    context = multiprocessing.get_context("spawn")
    hung = context.Value("q", 0)  # the seed that had to be killed, plus 1
    began_s = time.monotonic()
    try:
        verdict_files.require_writable(options)
        with _processes(jobs, context, hung) as pool:
            verdict = (_many if options.seed is None else _replay)(pool, options)
            verdict = replace(verdict, seconds=time.monotonic() - began_s)
        verdict_files.write(options, verdict)
        return verdict.exit_code
    except ScenarioError as error:
        return _cannot_run(options, str(error))
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # the reader is gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the final flush
            return EXIT_CANNOT_RUN
        return _cannot_run(options, str(error))
    except KeyboardInterrupt:
        print("\npybroker: interrupted; all processes were stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenProcessPool:
        why = "a simulating process ended unexpectedly: does the code call os._exit?"
        if hung.value:
            why = _too_long(hung.value - 1, caught=True)
        return _cannot_run(options, why)


def _cannot_run(options: argparse.Namespace, why: str) -> int:
    print(f"pybroker: {why}", file=sys.stderr)
    verdict = Verdict(
        _TOOL, options.target, "it could not run", EXIT_CANNOT_RUN, findings=[why], text=why
    )
    with contextlib.suppress(OSError):  # maybe this is the reason
        verdict_files.write(options, verdict)
    return EXIT_CANNOT_RUN


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pybroker simulate",
        description="Run asyncio code on pybroker.client.aio together with a broker in one "
        "process, under a virtual clock, with faults drawn from seeds, and judge what the topics "
        "hold afterwards. Exit code 0: every promise was kept, 1: one was broken, 2: it could not "
        "run, or no fault met work.",
    )
    parser.add_argument(
        "target", metavar="MODULE:FUNCTION", help="the scenario; MODULE may be a file.py"
    )
    parser.add_argument(
        "--seeds", type=_positive, default=1000, help="number of seeds (default 1000)"
    )
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument(
        "--jobs", type=_jobs, default=_processors(), help="processes (default: one per processor)"
    )
    parser.add_argument(
        "--seed", type=int, help="replay this seed, and print everything that happened"
    )
    parser.add_argument(
        "--faults",
        type=_numbers,
        metavar="N,N",
        help="with --seed: inject only these of its faults, by number (none: no faults)",
    )
    verdict_files.add_options(parser)
    return parser


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:9]) < 10**8):
        raise argparse.ArgumentTypeError(f"{text[:80]} is not a number from 1 to 99,999,999")
    return int(text)


def _jobs(text: str) -> int:
    return min(_positive(text), _MOST_JOBS)


def _numbers(text: str) -> tuple[int, ...]:
    if text == "none":
        return ()
    return tuple(_positive(number) for number in text.split(","))


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


# --- in the command's process


@contextlib.contextmanager
def _processes(jobs: int, context: Any, hung: Any) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes. After an error they are killed: their work is no longer needed."""
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(hung,))
    try:
        yield pool
        pool.shutdown(wait=True, cancel_futures=True)
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=True, cancel_futures=True)
        raise


def _replay(pool: ProcessPoolExecutor, options: argparse.Namespace) -> Verdict:
    chosen = None if options.faults is None else tuple(n - 1 for n in options.faults)
    outcome = pool.submit(_one, options.target, options.seed, chosen, True).result()
    text = report(outcome, everything=True)
    print(text)
    if outcome.violations:
        return _broken(options.target, outcome, text)
    facts = {"seed": outcome.seed, "history": outcome.digest}
    return Verdict(_TOOL, options.target, kept(outcome.judged), 0, text=text, facts=facts)


def _many(pool: ProcessPoolExecutor, options: argparse.Namespace) -> Verdict:
    end = options.start + options.seeds
    progress = Progress(options.seeds)
    print(f"seeds {options.start} to {end - 1} of {options.target}", flush=True)
    with contextlib.closing(progress):
        failed = _first_failure(pool, options, progress)
        if failed is None:
            progress.say(f"{options.seeds} seeds, {kept(progress.judged)}", final=True)
            print(progress.coverage, flush=True)
            return _kept(options, progress.judged, progress.coverage)
        progress.say(f"seed {failed.seed} failed: {failed.violations[0]}", final=True)
        outcome = _least(pool, options.target, failed, progress)
    text = report(outcome)
    print(f"\n{text}")
    verdict = _broken(options.target, outcome, text)
    print(f"again: {verdict.facts['again']}", flush=True)
    return verdict


def _kept(options: argparse.Namespace, judged: bool, coverage: Coverage) -> Verdict:
    """No promise was broken; but nothing was tested if no fault met work. One seed alone may well
    have drawn none.
    """
    untested = judged and coverage.nothing_met and options.seeds > 1
    return Verdict(
        _TOOL,
        options.target,
        "no fault met work" if untested else kept(judged),
        EXIT_CANNOT_RUN if untested else 0,
        findings=[str(coverage)] * untested,
        text=str(coverage),
        facts={
            "seeds": options.seeds,
            "faultsThatMetWork": dict(coverage.met),
            "faultsThatMetNone": [kind for kind in coverage.allowed if not coverage.met[kind]],
        },
    )


def _broken(target: str, outcome: Outcome, text: str) -> Verdict:
    facts = {
        "seed": outcome.seed,
        "faults": [described(outcome.faults[index]) for index in outcome.chosen],
        "history": outcome.digest,
        "again": f"pybroker simulate {target} {replay_options(outcome)}",
    }
    findings = [*map(str, outcome.violations)]
    return Verdict(_TOOL, target, "a promise was broken", EXIT_BROKEN, 0.0, findings, text, facts)


def _first_failure(
    pool: ProcessPoolExecutor, options: argparse.Namespace, progress: "Progress"
) -> Outcome | None:
    """The lowest seed that fails, independent of the number of processes."""
    end = options.start + options.seeds
    firsts = iter(range(options.start, end, _CHUNK))
    waiting: list[Future[Chunk]] = []

    def submit() -> None:
        if (first := next(firsts, None)) is not None:
            chunk = range(first, min(first + _CHUNK, end))
            waiting.append(pool.submit(_some, options.target, chunk))

    for _ in range(2 * options.jobs):
        submit()
    while waiting:
        chunk = waiting.pop(0).result()
        progress.add(chunk.seeds)
        progress.judged |= chunk.judged
        progress.coverage.join(chunk.coverage)
        if chunk.failed is not None:
            for future in waiting:
                future.cancel()
            return chunk.failed
        submit()
    return None


def _least(
    pool: ProcessPoolExecutor, target: str, failed: Outcome, progress: "Progress"
) -> Outcome:
    def run(chosen: Sequence[int]) -> Outcome:
        outcome: Outcome = pool.submit(_one, target, failed.seed, tuple(chosen)).result()
        return outcome

    again = run(failed.chosen)
    if again.digest != failed.digest:
        progress.say(
            "this seed does not replay exactly: does the code read the real time (datetime.now(), "
            "uuid.uuid1()), its process id (os.getpid()), a file, or what another seed has left in "
            "a global variable?",
            final=True,
        )
    return shrunk(failed, run, progress.say)


class Progress:
    """A line that is redrawn on a terminal; elsewhere a new line now and then."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began_s = self._said_s = time.monotonic()
        self._redraws = sys.stdout.isatty()
        self._open = False
        self.judged = False
        self.coverage = Coverage()

    def add(self, seeds: int) -> None:
        self._done += seeds
        seconds = time.monotonic() - self._began_s
        said = f"{self._done} of {self._total} seeds"
        if self._done >= _TELLS_TIME_FROM:
            said += f", {seconds / self._done * (self._total - self._done):.0f} s left"
        self.say(said)

    def say(self, text: str, final: bool = False) -> None:
        if self._redraws:
            print(f"\r\x1b[K{text}", end="\n" if final else "", flush=True)
            self._open = not final
        elif final or time.monotonic() - self._said_s >= _SAY_EVERY_S:
            print(text, flush=True)
            self._said_s = time.monotonic()

    def close(self) -> None:
        if self._open:
            print("\r\x1b[K", end="", flush=True)
            self._open = False


# --- in the simulating processes


def _begin(hung: Any = None) -> None:
    """Initialises a process. Ctrl-C ends the command, which ends its processes; they do not outlive
    it even if it is killed.

    `hung` receives the number of a seed whose code catches the exception that should end it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_command, daemon=True).start()
    signal.signal(signal.SIGALRM, _Limit(hung).strike)
    logging.disable(logging.CRITICAL)
    gc.set_threshold(_GARBAGE_THRESHOLD)


def _end_with_the_command() -> None:
    if (command := multiprocessing.parent_process()) is not None:
        command.join()
        os._exit(EXIT_INTERRUPTED)


class _Limit:
    """Ends a seed that takes too long. If code keeps catching the exception, the process ends."""

    def __init__(self, hung: Any) -> None:
        self._hung = hung

    def strike(self, *_: Any) -> None:
        _running.strikes += 1
        if _running.strikes > _MOST_CAUGHT and self._hung is not None:
            self._hung.value = _running.seed + 1
            os._exit(EXIT_CANNOT_RUN)
        raise Hung


def _some(target: str, seeds: range) -> Chunk:
    scenario = loaded(target)
    judged, coverage = False, Coverage()
    with _in_silence():
        for number, seed in enumerate(seeds, 1):
            outcome = _limited(scenario, seed, None)
            judged |= outcome.judged
            coverage.add(outcome)
            if outcome.violations:
                return Chunk(number, outcome, judged, coverage)
    return Chunk(len(seeds), None, judged, coverage)


def _one(target: str, seed: int, chosen: tuple[int, ...] | None, aloud: bool = False) -> Outcome:
    scenario = loaded(target)
    with contextlib.nullcontext() if aloud else _in_silence():
        return _limited(scenario, seed, chosen)


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """Hides the code's output, which is shown only in a replay."""
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def _limited(
    scenario: Callable[[Simulation], object], seed: int, chosen: tuple[int, ...] | None
) -> Outcome:
    _running.seed, _running.strikes = seed, 0
    signal.setitimer(signal.ITIMER_REAL, _SEED_LIMIT_S, _AGAIN_AFTER_S)
    try:
        return run_seed(scenario, seed, chosen)
    except Hung:
        raise ScenarioError(_too_long(seed, caught=_running.strikes > 1)) from None
    except KeyboardInterrupt:  # these processes ignore SIGINT
        raise ScenarioError(f"seed {seed}: the code raised KeyboardInterrupt") from None
    except ScenarioError:
        raise
    # Errors of the scenario itself. Not every exception can be sent to another process.
    except (Exception, SystemExit) as error:
        raise ScenarioError(f"the scenario failed:\n{traceback.format_exc()}") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _too_long(seed: int, caught: bool) -> str:
    """`caught`: the code caught the exception that should have ended it."""
    return (
        f"seed {seed} did not end within {_SEED_LIMIT_S:.0f} s of real time: is there a loop "
        "without an await, or a call that blocks?"
        + (" Let BaseException pass where you catch exceptions." if caught else "")
    )


@dataclass(slots=True)
class _Running:
    """The seed that this process simulates, and the number of times that its limit has struck."""

    seed: int = 0
    strikes: int = 0


_running = _Running()
_loaded: dict[str, Callable[[Simulation], object]] = {}


def loaded(target: str) -> Callable[[Simulation], object]:
    """The function that `target` names. Raises ScenarioError."""
    if target not in _loaded:
        with virtual_time():
            _loaded[target] = _load(target)
    return _loaded[target]


def _load(target: str) -> Callable[[Simulation], object]:
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise ScenarioError(f"{target} names no function: write MODULE:FUNCTION")
    with _importing(where):
        try:
            module = _module(where)
        except (Exception, SystemExit) as error:  # a script without a main guard may exit
            text = "".join(traceback.format_exception_only(error)).strip()
            raise ScenarioError(f"{where} cannot be imported: {text}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ScenarioError(f"{where} has no function {name}")
    found: Callable[[Simulation], object] = function
    return found


@contextlib.contextmanager
def _importing(where: str) -> Iterator[None]:
    """Makes modules in the same folder importable, even later."""
    folder = str(Path(where).resolve().parent if where.endswith(".py") else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    yield


def _module(where: str) -> Any:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = Path(where)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{where} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
