"""The user's processes: each has its own event loop, crashes at an await and is restarted."""

import inspect
import linecache
import sysconfig
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from pybroker.base.errors import PulsarError
from pybroker.simulation.declaring import ProcessSpec
from pybroker.simulation.faults import Fault
from pybroker.simulation.network import NobodyListens
from pybroker.simulation.node import Node, NotSimulated, SimulatedTask, named
from pybroker.simulation.recording import Recorder
from pybroker.simulation.recording_kafka import is_of_kafka
from pybroker.simulation.world import World

AGAIN_AFTER_S: Final = 1.0
_FAILURES_IN_A_ROW: Final = 5
# Code in these folders is not the user's.
_LIBRARIES: Final = (
    sysconfig.get_path("stdlib"),
    str(Path(__file__).parents[1]),
    str(Path(sysconfig.get_path("purelib")) / "aiokafka"),
    str(Path(sysconfig.get_path("platlib")) / "aiokafka"),
)


class ProcessNode(Node):
    """A node that can end before its n-th turn."""

    def __init__(self, world: World, name: str, recorder: Recorder) -> None:
        super().__init__(world, world.network, name)
        self.recorder = recorder
        self.turns = 0
        self.crash_before: int | None = None
        self.on_crash: Callable[[], None] = lambda: None
        self.on_step: Callable[[bool], None] = lambda ends: None
        self.on_exit: Callable[[SystemExit], None] = lambda error: None

    def _iterate(self) -> None:
        self.turns += 1
        if self.crash_before is not None and self.turns >= self.crash_before and not self.dead:
            self.on_crash()
            return
        try:
            super()._iterate()
        except SystemExit as error:  # raised in a task or a callback
            self.on_exit(error)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Only records the error. asyncio writes it to a log, too, and the process continues."""
        if not self.dead:
            error = context.get("exception")
            self.tell(f"asyncio logs: {context.get('message')}: {error!r}")
            self.keep(error)

    def step(self, ends: bool = False) -> None:
        """Called when the user's code gives the broker a command, or has received a message.
        `ends`: the command is to end a transaction.
        """
        self.recorder.acted()
        self.on_step(ends)

    def tell(self, text: str, *about: str, always: bool = False) -> None:
        self.recorder.tell(self.name, text, *about, always=always)

    def where(self) -> str:
        """The places in the user's code where its tasks wait."""
        places = [place for task in self._tasks if not task.done() if (place := _place(task))]
        return "; ".join(dict.fromkeys(places)) or "outside of your code"


def _place(task: SimulatedTask) -> str:
    """The innermost line of a task that is in the user's code."""
    coroutine: Any = task.get_coro()
    found = ""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is None:
            break
        path = frame.f_code.co_filename
        if not path.startswith(_LIBRARIES) and not path.startswith("<frozen"):
            source = linecache.getline(path, frame.f_lineno).strip()
            found = f"{Path(path).name}:{frame.f_lineno} `{source}`"
        coroutine = coroutine.cr_await if inspect.iscoroutine(coroutine.cr_await) else None
    return found


class UserProcess:
    """One declared process, with all its restarts."""

    def __init__(self, world: World, spec: ProcessSpec, recorder: Recorder) -> None:
        self.world = world
        self.spec = spec
        self.recorder = recorder
        self.incarnation = 0
        self.node: ProcessNode | None = None
        self.finished = False
        self.clock_offset_s = 0.0
        self.broken = ""  # the reason why another restart is useless
        self.assertions: list[str] = []
        self._planned: tuple[Fault, str] | None = None
        self._steps = 0
        self._at_steps: list[tuple[int, bool, Callable[[], None]]] = []
        self._has_transactions = False
        self._failures: list[str] = []
        self._healed = False

    def start(self) -> None:
        self.incarnation += 1
        name = f"{self.spec.name}.{self.incarnation}"
        self.node = self.world.add(ProcessNode(self.world, name, self.recorder))  # type: ignore[abstract]
        self.node.clock_offset_s = self.clock_offset_s
        self.node.on_crash = self._crash_now
        self.node.on_step = self._stepped
        self.node.on_exit = partial(self._ended_by, node=self.node)
        self.node.tell("starts", always=True)
        if self._planned is not None:
            self.node.crash_before = self._planned[0].turn
        self.node.start(self._main(self.node), name)

    @property
    def is_busy(self) -> bool:
        """Whether it blocks its loop, or has ended and is started again."""
        if self.node is None:
            return False
        return self.node.is_busy or (self.node.dead and not self.finished)

    async def _main(self, node: ProcessNode) -> None:
        try:
            made: object = self.spec.function(*self.spec.arguments, **self.spec.keywords)
            if not inspect.isawaitable(made):
                raise TypeError(f"{named(self.spec.function)} is not async: write `async def`")
            await made
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit and CancelledError end a process too
            failed = next((e for e in _members(error) if isinstance(e, AssertionError)), None)
            if failed is not None:
                text = f"{self.spec.name}: {said(failed)}"
                node.tell(f"fails an assertion: {text}", always=True)
                self.assertions.append(text)
                self.finished = True
            elif not node.dead:
                self._ended_by(error, node)
        else:
            node.tell("returns", always=True)
            self.finished = True

    def _ended_by(self, error: BaseException, node: ProcessNode) -> None:
        text = said(error)
        node.tell(f"ends: {text}", always=True)
        expected = all(_is_expected(each) for each in _members(error))
        if _is_for_good(error):
            expected = not self._healed  # the service may come later
        self._failures = [] if expected else [*self._failures, text]
        if len(self._failures) >= _FAILURES_IN_A_ROW:
            self.broken = f"{self.spec.name} ended {_FAILURES_IN_A_ROW} times in a row with {text}"
        self.world.after(0.0, node.crash)
        self.world.after(AGAIN_AFTER_S, self._again, node)

    def _again(self, node: ProcessNode) -> None:
        if self.node is node and not self.broken:
            self.start()

    # --- faults

    def crash(self, fault: Fault, name: str) -> None:
        """Schedules a crash before the fault's turn, counted from now or from the next start."""
        self._planned = fault, name
        if self.node is not None and not self.node.dead:
            self.node.crash_before = self.node.turns + fault.turn

    def _crash_now(self) -> None:
        node = self.node
        assert node is not None
        assert self._planned is not None
        fault, name = self._planned
        self._planned = None
        self.recorder.strikes.add(name, self.world.now)
        node.tell(f"{name}: crashes at {node.where()}", always=True)
        node.crash(silently=fault.silent)
        if not self.finished:
            self.world.after(fault.down_s, self._again, node)

    def at_step(self, fault: Fault, action: Callable[[], None]) -> None:
        """Calls `action` at the fault's step, counted from now, maybe in a later life."""
        self._at_steps.append((self._steps + fault.step, fault.at_end, action))

    def _stepped(self, ends: bool) -> None:
        self._steps += 1
        self._has_transactions |= ends
        waiting, self._at_steps = self._at_steps, []
        for number, at_end, action in waiting:
            wanted = ends or not (at_end and self._has_transactions)
            if number <= self._steps and wanted:
                action()
            else:
                self._at_steps.append((number, at_end, action))

    def pause(self, seconds: float) -> bool:
        """Stops the process, as SIGSTOP does; False if it does not run."""
        if self.node is None or self.node.dead:
            return False
        self.node.busy_until = max(self.node.busy_until, self.world.now) + seconds
        return True

    def set_clock(self, jump_s: float) -> None:
        self.clock_offset_s += jump_s
        if self.node is not None:
            self.node.clock_offset_s = self.clock_offset_s

    def heal(self) -> None:
        """Cancels scheduled crashes."""
        self._healed = True
        self._at_steps = []
        self._planned = None
        if self.node is not None:
            self.node.crash_before = None


def said(error: BaseException) -> str:
    """The error in one line; for a bare assert, its source. A sentence of the simulation is shown
    even if a library has raised an error of its own about it.
    """
    error = next(iter(_members(error)))
    text = str(error).partition("\n")[0]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if text or trace is None:
        shown = f"{type(error).__name__}: {text}" if text else type(error).__name__
    else:
        path = trace.tb_frame.f_code.co_filename
        source = linecache.getline(path, trace.tb_lineno).strip()
        shown = f"{type(error).__name__} at {Path(path).name}:{trace.tb_lineno} `{source}`"
    known = (each for each in _causes(error) if isinstance(each, NotSimulated | NobodyListens))
    told = next((str(each.args[-1]) for each in known), "")
    return f"{shown}: {told}" if told not in shown else shown


def _members(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group, as asyncio.TaskGroup raises it; otherwise the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _members(each)
    else:
        yield error


def _is_expected(error: BaseException) -> bool:
    return isinstance(error, PulsarError | OSError | TimeoutError) or is_of_kafka(error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and all errors behind it."""
    found: dict[int, BaseException] = {}
    coming: list[BaseException | None] = [error]
    while coming:
        if (each := coming.pop(0)) is not None and id(each) not in found:
            found[id(each)] = each
            coming += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
    yield from found.values()


def _is_for_good(error: BaseException) -> bool:
    """Whether it calls a service that is not in the scenario."""
    return any(isinstance(each, NobodyListens) for each in _causes(error))
