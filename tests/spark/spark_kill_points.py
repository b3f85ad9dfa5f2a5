"""Places of a pipeline where a kill can be ordered, by a file in a folder that all processes see.

The first process that reaches the place takes the order and sends SIGKILL to the named target.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from pybroker.spark.datasource import PulsarDataSource
from pybroker.spark.options import Mode, chosen
from pybroker.spark.writing.sink import Plan, PulsarStreamWriter

FOLDER = "KILL_FOLDER"


def reached(place: str) -> None:
    folder = Path(os.environ[FOLDER])
    taken = folder / f"taken-{os.getpid()}"
    try:
        (folder / f"order-{place}").rename(taken)
    except FileNotFoundError:
        return
    target = taken.read_text()
    (folder / "done").write_text(f"{target} at {place}")
    if target == "executor":
        _kill(_java_above(os.getpid()))
    else:
        for pid in (folder / f"{target}.pid").read_text().split():
            _kill(int(pid))


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _java_above(pid: int) -> int:
    while b"java" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
        status = Path(f"/proc/{pid}/status").read_text()
        pid = int(status.partition("PPid:")[2].split()[0])
    return pid


def noticed(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches of a task, with the places around them."""
    reached("task-begun")
    for number, batch in enumerate(batches):
        if number:
            reached("task-working")
        yield batch
    reached("task-fed")


class KillablePulsar(PulsarDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> "KillableWriter":
        return KillableWriter(Plan(chosen(self.options, Mode.WRITE_STREAM), schema, overwrite))


class KillableWriter(PulsarStreamWriter):
    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        reached("planned")
        return state

    def write(self, iterator: Iterator[Any]) -> Any:
        written = super().write(noticed(iterator))
        reached("task-done")
        return written

    def _end(self, written: Any, batch_id: int) -> Any:
        end = super()._end(written, batch_id)
        end.on_step = lambda step, work: reached(step.value)
        return end
