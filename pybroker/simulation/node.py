"""One simulated process: an asyncio loop whose timers, threads and sockets belong to a world.

An executor's job runs in one piece, some time after it was submitted; its result arrives some time
after that. An executor starts jobs in order, and runs as many at once as it has threads. A crash
may come in between, or within the job at a disk operation.
"""

import asyncio
import contextvars
import socket
import threading
from asyncio import events
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

from pybroker.simulation.burying import end
from pybroker.simulation.events import Events
from pybroker.simulation.network import Network

Callback = Callable[..., object]
Job = tuple[asyncio.Future[Any], Callback, tuple[Any, ...]]


NO_PROGRAMS: Final = "a simulation starts no programs: call an async function in its place"
_NO_TLS: Final = (
    "the simulated network has no TLS: use pulsar:// and http:// in the simulation (tests of the "
    "broker's TLS need a real broker)"
)


class NotSimulated(NotImplementedError):
    """Code in a simulation used something that cannot be simulated. A NotImplementedError, because
    some libraries then do without.
    """


class SimulatedCrash(BaseException):
    """Raised in code of a node that has just died, so that the code does not continue."""


class SimulatedTask(asyncio.Task[Any]):
    """Its hash is a number, not an address, so that the order of a set of tasks depends only on the
    seed.
    """

    _number = -1

    def __hash__(self) -> int:
        if self._number < 0:
            self._number = _next_number(self.get_loop())
        return self._number


class SimulatedFuture(asyncio.Future[Any]):
    """Its hash is a number, as for tasks."""

    _number = -1

    def __hash__(self) -> int:
        if self._number < 0:
            self._number = _next_number(self.get_loop())
        return self._number


def _next_number(loop: Any) -> int:
    number: int = next(loop.world.numbers)
    return number


class ReadyHandle:
    """The result of `call_soon`: lighter than asyncio.Handle, because there are very many."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context")

    def __init__(
        self, callback: Callback, args: tuple[Any, ...], context: contextvars.Context
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


class Timer(ReadyHandle):
    """The result of `call_at`: as light as ReadyHandle, with a time."""

    __slots__ = ("_when",)

    def __init__(
        self,
        callback: Callback,
        args: tuple[Any, ...],
        context: contextvars.Context,
        when: float,
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self._when = when

    def cancel(self) -> None:
        """Also releases the callback: the event stays in the world's queue until it is due."""
        self._cancelled = True
        self._callback = _nothing
        self._args = ()

    def when(self) -> float:
        return self._when


def _nothing() -> None:
    """Replaces a cancelled callback."""


class Node(asyncio.AbstractEventLoop):
    """The loop of one process. When it dies, its unfinished work stays unfinished."""

    in_job: ClassVar["Node | None"] = None  # the node whose executor job is running
    job_thread: ClassVar[int] = 0  # its thread: other threads of this Python are not simulated

    def __init__(self, world: Events, network: Network, name: str) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.dead = False
        self.crash_hooks: list[Callable[[], None]] = []
        self.clock_offset_s = 0.0  # of its machine's wall clock
        self.busy_until = 0.0  # virtual time until which code blocks the loop
        self._random = world.stream(f"node {name}").random
        self._ready: deque[ReadyHandle] = deque()
        self._awake = False
        self._tasks: list[SimulatedTask] = []
        self._kept: list[object] = []
        self._tasks_to_prune = 64
        self._pools: dict[object, _Pool] = {}
        self._exception_handler: Callable[..., object] | None = None
        # Ports that sockets seem to be connected to.
        self._connected: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<Node {self.name}{' dead' if self.dead else ''}>"

    # --- life and death

    def start(self, work: Coroutine[Any, Any, Any], name: str | None = None) -> SimulatedTask:
        """Creates a task on this node from outside. If the task fails, the world records it."""
        task = self.create_task(work, name=name or f"{self.name}: {named(work)}")
        task.add_done_callback(self._main_ended)
        return task

    def _main_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            context = {"message": f"{task.get_name()} failed", "exception": task.exception()}
            self.call_exception_handler(context)

    def crash(self, silently: bool = False) -> None:
        """Stops the node at once. Peers see a reset, or nothing if it dies silently (power cut)."""
        if self.dead:
            return
        self.dead = True
        self._kept.extend(self._ready)
        self._ready.clear()
        self.network.node_died(self, silently)
        for hook in self.crash_hooks:
            hook()

    def bury(self) -> None:
        """Closes suspended coroutines, and coroutines that their `finally` blocks start. Their
        actions have no effect.
        """
        _set_running_loop(self)
        try:
            while self._tasks:
                tasks, self._tasks = self._tasks, []
                for task in tasks:
                    if not task.done():
                        task._log_destroy_pending = False  # type: ignore[attr-defined]
                        end(task.get_coro())
        finally:
            _set_running_loop(None)
        self._kept.clear()
        self._ready.clear()
        self._pools.clear()

    def keep(self, thing: object) -> None:
        """Keeps something whose collection would run code."""
        self._kept.append(thing)

    # --- iterations

    def post(self, handle: ReadyHandle) -> None:
        if self.dead:
            self._kept.append(handle)
            return
        self._ready.append(handle)
        if not self._awake:
            self._awake = True
            self._iterate_soon()

    timer_due = post

    @property
    def is_busy(self) -> bool:
        """Whether code that does not await blocks the loop, or executors have jobs."""
        jobs = any(pool.running or pool.waiting for pool in self._pools.values())
        return jobs or self.busy_until > self.world.now

    def _iterate_soon(self) -> None:
        world, random = self.world, self._random
        weather = world.weather
        seconds = weather.iteration_s * random()
        if weather.stall_chance and random() < weather.stall_chance:
            seconds += weather.stall_s * random()
        busy_s = self.busy_until - world.now
        world.after(seconds if seconds >= busy_s else busy_s, self._iterate)

    def _iterate(self) -> None:
        ready = self._ready
        _set_running_loop(self)
        try:
            for _ in range(len(ready)):
                if self.dead:
                    return
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    what = f"Exception in callback {handle._callback}"
                    self.call_exception_handler({"message": what, "exception": error})
        finally:
            _set_running_loop(None)
        if ready and not self.dead:
            self._iterate_soon()
        else:
            self._awake = False

    # --- asyncio: callbacks, futures, tasks

    def time(self) -> float:
        return self.world.now

    def call_soon(  # type: ignore[override]
        self, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> ReadyHandle:
        handle = ReadyHandle(callback, args, copy_context() if context is None else context)
        if self.dead:
            self._kept.append(handle)
            return handle
        self._ready.append(handle)
        if not self._awake:
            self._awake = True
            self._iterate_soon()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callback, *args: Any, context: Any = None
    ) -> Timer:
        timer = Timer(callback, args, copy_context() if context is None else context, when)
        self.world.at(when, Node.timer_due, self, timer)
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callback, *args: Any, context: Any = None
    ) -> Timer:
        when = self.world.now + delay
        timer = Timer(callback, args, copy_context() if context is None else context, when)
        self.world.at(when, Node.timer_due, self, timer)
        return timer

    def create_future(self) -> SimulatedFuture:
        return SimulatedFuture(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Any = None
    ) -> SimulatedTask:
        task = SimulatedTask(coro, loop=self, name=name or "task", context=context)
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_to_prune:
            self.forget_what_is_done()
            self._tasks_to_prune = 64 + 2 * len(self._tasks)
        return task

    # --- asyncio: threads

    def forget_what_is_done(self) -> None:
        """Drops finished tasks, because a failed task refers to everything in its frames."""
        self._tasks = [task for task in self._tasks if not task.done()]

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callback, *args: Any
    ) -> Awaitable[Any]:
        future = self.create_future()
        pool = self._pools.setdefault(executor, _Pool(executor))
        pool.waiting.append((future, func, args))
        self._start_jobs(pool)
        return future

    def _start_jobs(self, pool: "_Pool") -> None:
        while pool.waiting and pool.running < pool.threads:
            pool.running += 1
            self.world.after(self._job_delay(), self._run_job, pool.waiting.popleft(), pool)

    def _job_delay(self) -> float:
        return self.world.weather.job_delay_s * self._random()

    def _run_job(self, job: Job, pool: "_Pool") -> None:
        if self.dead:
            return
        future, func, args = job
        self.world.job_cost_s = 0.0
        result, error = None, None
        if not future.cancelled():
            Node.in_job, Node.job_thread = self, threading.get_ident()
            try:
                result = func(*args)
            except BaseException as raised:
                error = raised
            finally:
                Node.in_job = None
        end_s = self.world.job_cost_s + self._job_delay()
        self.world.after(end_s, self._job_ended, future, result, error, pool)
        del error  # otherwise the frames of its traceback would refer to it

    def _job_ended(
        self, future: asyncio.Future[Any], result: Any, error: Any, pool: "_Pool"
    ) -> None:
        if self.dead:
            self._kept.append((future, result, error))
            return
        self.call_soon(_settle, future, result, error)
        pool.running -= 1
        self._start_jobs(pool)

    def set_default_executor(self, executor: Any) -> None:
        """No effect: all executors behave the same."""

    async def shutdown_default_executor(self) -> None:
        """No effect: there are no threads."""

    async def shutdown_asyncgens(self) -> None:
        """No effect: generators are kept until the world closes."""

    # --- asyncio: network

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        if options.get("ssl") is not None:
            raise NotSimulated(_NO_TLS)
        if (sock := options.get("sock")) is not None:  # bound, but it will never listen
            port = sock.getsockname()[1]
            sock.close()
        return self.network.listen(self, protocol_factory, port or 0)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        if options.get("ssl") is not None:
            raise NotSimulated(_NO_TLS)
        if (sock := options.get("sock")) is not None:
            port = self._connected.pop(sock, None)
            if port is None:
                raise NotSimulated("a simulation has no real sockets: pass a host and a port")
            sock.close()
        return await self.network.connect(self, protocol_factory, port)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Connects a socket that will be passed to `create_connection`, as aiohttp does. The socket
        itself stays unconnected.
        """
        await self.network.reach(self, address[1])
        self._connected[sock] = address[1]

    async def subprocess_exec(self, *_: Any, **options: Any) -> Any:
        raise NotSimulated(NO_PROGRAMS)

    subprocess_shell = subprocess_exec

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host or "127.0.0.1", port))]

    # --- asyncio: the loop itself

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """No effect: debugging reads the real clock."""

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Any, *args: Any
    ) -> None:
        """No effect: there are no signals."""

    def remove_signal_handler(self, sig: int) -> bool:
        return False

    def get_task_factory(self) -> None:
        """None: all tasks are the simulation's."""

    def set_task_factory(self, factory: Any) -> None:
        """No effect: a task that begins at once would be a task that begins soon."""

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        return sockaddr[0], str(sockaddr[1])

    def get_exception_handler(self) -> Any:
        return self._exception_handler

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.dead:
            return
        error = context.get("exception")
        self.world.failures.append(
            f"{self.name} at {self.world.now:.3f} s: {context.get('message')}: {error!r}"
        )
        self.keep(error)


def _unsupported(name: str) -> Callback:
    what = "a simulation has no real files, pipes and sockets. Use asyncio.open_connection(…) and "
    what += "asyncio.start_server(…)"
    if name in ("run_forever", "run_until_complete", "stop", "close"):
        what = "your function is awaited on a loop that runs already"
    if name == "start_tls":
        what = _NO_TLS

    def refuse(self: Node, *_: Any, **options: Any) -> Any:
        raise NotSimulated(f"the simulated event loop has no {name}(): {what}")

    return refuse


# Otherwise they would raise NotImplementedError without a word.
for _name in sorted(set(vars(asyncio.AbstractEventLoop)) - set(vars(Node))):
    if not _name.startswith("_"):
        setattr(Node, _name, _unsupported(_name))


def named(work: object) -> str:
    """The name of a coroutine or a function, if it has one."""
    return str(getattr(work, "__qualname__", "coroutine"))


class _Pool:
    """The jobs of one executor. The executor itself is never used."""

    def __init__(self, executor: Any) -> None:
        self.threads: int = getattr(executor, "_max_workers", 8)
        self.waiting: deque[Job] = deque()
        self.running = 0


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
