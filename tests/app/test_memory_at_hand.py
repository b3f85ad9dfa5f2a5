"""Settings of the allocator, in a separate process."""

import subprocess
import sys

import pytest

ROUNDS = """
import resource, sys
from pybroker.process.memory import keep_memory_at_hand
told = keep_memory_at_hand() if "keep" in sys.argv else None
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    before = faults()
    pieces = [b"x" * 1_000_000 for _ in range(50)]
    del pieces
print(told, faults() - before)
"""


def told_and_faults(*arguments: str) -> tuple[str, int]:
    """The answer of the allocator, and the page faults when 50 MB are allocated again."""
    ended = subprocess.run(
        [sys.executable, "-c", ROUNDS, *arguments], capture_output=True, text=True, check=True
    )
    told, faults = ended.stdout.split()
    return told, int(faults)


def test_memory_that_was_used_is_used_again() -> None:
    told, faults = told_and_faults("keep")
    assert faults < 1000 or told == "False"


def test_an_allocator_that_cannot_be_told_is_let_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from pybroker.process import memory

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    assert not memory.keep_memory_at_hand()
