"""The peak resident memory of a Spark job's processes, by kind."""

import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

_EVERY_S: Final = 0.25
_PAGES_PER_MB: Final = 1024 * 1024 // os.sysconf("SC_PAGE_SIZE")


class Memory:
    """Measures the descendants of some processes while the block runs. The result, in MB by kind,
    is the largest process of each kind, because each process has its own limit.
    """

    def __init__(self, roots: dict[str, Sequence[int]]) -> None:
        self.most_mb: defaultdict[str, int] = defaultdict(int)
        self._roots = roots
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            children = _children()
            for name, pids in self._roots.items():
                for kind, mb in _sizes(name, pids, children):
                    self.most_mb[kind] = max(self.most_mb[kind], mb)


def _sizes(
    name: str, roots: Sequence[int], children: dict[int, list[int]]
) -> Iterator[tuple[str, int]]:
    todo = list(roots)
    while todo:
        pid = todo.pop()
        todo += children.get(pid, ())
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue  # The process has ended meanwhile.
        kind = "JVM" if b"java" in command.split(b"\0")[0] else "Python"
        if b"CoarseGrainedExecutorBackend" in command:
            kind = "executor JVM"
        yield f"{name}: {kind}", pages // _PAGES_PER_MB


def _children() -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            found[int(stat.rpartition(")")[2].split()[1])].append(int(entry.name))
    return found
