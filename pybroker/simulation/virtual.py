"""Time and randomness for code that gets them from Python: `time.time()`, `random.random()`,
`uuid4()`.

While this is installed, the functions of the module `time` return virtual time to a process of a
simulation, and real time to everything else. `random` and `os.urandom` (so `uuid.uuid4` and
`secrets` too) are seeded. C extensions and `datetime.now()` still read the real time. Threads,
forks, programs and the real network cannot be simulated: using them raises an error that says what
to do instead.
"""

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
from asyncio import events
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final
from unittest.mock import patch

from pybroker.simulation.node import NO_PROGRAMS, Node, NotSimulated
from pybroker.simulation.world import EPOCH_MS

# What starts a program in the end. Only some platforms have each of them.
_PROGRAMS: Final = [
    (owner, name)
    for owner, name in (
        (subprocess.Popen, "__init__"),
        (os, "system"),
        (os, "posix_spawn"),
        (os, "posix_spawnp"),
        (os, "execv"),
        (os, "execve"),
    )
    if hasattr(owner, name)
]
_ASKING_THE_MACHINE: Final = ("platform", "uuid", "ctypes.util", "sysconfig", "_osx_support")


def running_node() -> Node | None:
    """The process whose code this thread is running, or None."""
    loop = events._get_running_loop()
    if isinstance(loop, Node):
        return loop
    in_job = Node.in_job
    return in_job if in_job is not None and Node.job_thread == threading.get_ident() else None


def _wall_s(node: Node) -> float:
    return EPOCH_MS / 1000 + node.clock_offset_s + _monotonic_s(node)


def _monotonic_s(node: Node) -> float:
    if Node.in_job is node:
        return node.world.now + node.world.job_cost_s
    return max(node.world.now, node.busy_until)


def _answering(real: Callable[[], Any], simulated: Callable[[Node], Any]) -> Callable[[], Any]:
    def now() -> Any:
        node = running_node()
        return real() if node is None else simulated(node)

    return now


def _of_now(real: Callable[..., Any], arguments: int) -> Callable[..., Any]:
    """Wraps `real`, which has this many arguments before the time. The time defaults to now."""

    def of(*given: Any) -> Any:
        if running_node() is None or (len(given) > arguments and given[arguments] is not None):
            return real(*given)
        now: Any = time.time()
        return real(*given[:arguments], time.localtime(now) if arguments else now)

    return of


def _sleeping(real: Callable[[float], None]) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        """Blocks the process's loop, or the thread of an executor's job."""
        node = running_node()
        if node is None:
            real(seconds)
        elif Node.in_job is node:
            node.world.job_cost_s += seconds
        else:
            node.busy_until = max(node.world.now, node.busy_until) + seconds

    return sleep


def _refusing(real: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    def start(thread: threading.Thread) -> None:
        if running_node() is not None:
            raise NotSimulated(
                "a simulation runs no threads: use pybroker.client.aio, not pybroker.client, and "
                "await asyncio.to_thread(…) or loop.run_in_executor(…) for what blocks"
            )
        real(thread)

    return start


def _reaching(real: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method by which a socket reaches a peer."""

    def reach(connection: socket.socket, *given: Any) -> Any:
        if running_node() is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            raise NotSimulated(
                "a simulation has no real network: use asyncio.open_connection(…), and make the "
                "service that it reaches a process of the scenario"
            )
        return real(connection, *given)

    return reach


def _starting_programs(real: Callable[..., Any]) -> Callable[..., Any]:
    def start(*given: Any, **options: Any) -> Any:
        if running_node() is not None and not _asked_by_python():
            raise NotSimulated(NO_PROGRAMS)
        return real(*given, **options)

    return start


def _asked_by_python() -> bool:
    """Whether a module of Python's own asks a program about this machine, such as uname."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in ("subprocess", "os", __name__):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _ASKING_THE_MACHINE


def _forking(real: Callable[[], int]) -> Callable[[], int]:
    def fork() -> int:
        if running_node() is not None:
            raise NotSimulated("a simulation cannot fork: declare another process with sim.process")
        return real()

    return fork


@contextlib.contextmanager
def virtual_time() -> Iterator[None]:
    """Within the block, processes of a simulation get virtual time."""
    with contextlib.ExitStack() as stack:
        for name, simulated in (("time", _wall_s), ("monotonic", _monotonic_s)):
            _replace(stack, name, simulated)
        _replace(stack, "perf_counter", _monotonic_s)
        for name, arguments in (("localtime", 0), ("gmtime", 0), ("ctime", 0), ("strftime", 1)):
            of_now = _of_now(getattr(time, name), arguments)
            stack.enter_context(patch.object(time, name, of_now))
        sleep = _sleeping(time.sleep)
        stack.enter_context(patch.object(time, "sleep", sleep))
        start = _refusing(threading.Thread.start)
        stack.enter_context(patch.object(threading.Thread, "start", start))
        for name in ("connect", "connect_ex", "sendto"):
            reach = _reaching(getattr(socket.socket, name))
            stack.enter_context(patch.object(socket.socket, name, reach))
        for owner, name in _PROGRAMS:
            started = _starting_programs(getattr(owner, name))
            stack.enter_context(patch.object(owner, name, started))
        stack.enter_context(patch.object(os, "fork", _forking(os.fork)))
        yield


def _replace(stack: contextlib.ExitStack, name: str, simulated: Callable[[Node], float]) -> None:
    in_seconds = _answering(getattr(time, name), simulated)
    in_ns = _answering(getattr(time, f"{name}_ns"), lambda node: round(simulated(node) * 1e9))
    stack.enter_context(patch.object(time, name, in_seconds))
    stack.enter_context(patch.object(time, f"{name}_ns", in_ns))


@contextlib.contextmanager
def seeded_chance(rng: random.Random) -> Iterator[None]:
    """Within the block, all of Python's random numbers come from `rng`."""
    state, simulating = random.getstate(), threading.get_ident()
    real_urandom = os.urandom
    random.seed(rng.getrandbits(64))

    class Seeded(random.Random):
        def __init__(self, x: Any = None) -> None:
            mine = x is None and threading.get_ident() == simulating
            super().__init__(rng.getrandbits(64) if mine else x)

    def urandom(size: int) -> bytes:
        mine = threading.get_ident() == simulating
        return rng.randbytes(size) if mine else real_urandom(size)

    try:
        with (
            patch.object(random, "Random", Seeded),
            patch.object(random, "_urandom", urandom),
            patch.object(os, "urandom", urandom),
        ):
            yield
    finally:
        random.setstate(state)
