"""Lines written by a separate thread."""

import os
from collections.abc import Iterator

import pytest

from pybroker.logs.line_writer import LineWriter

Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_lines_come_in_order(pipe: Pipe) -> None:
    writer = LineWriter(pipe[1])
    for number in range(100):
        writer.write(f"{number}\n")
    writer.drain(30)
    assert os.read(pipe[0], 10_000).decode().split() == [str(number) for number in range(100)]


def test_nobody_waits_for_a_reader_and_what_is_left_out_is_counted(pipe: Pipe) -> None:
    writer = LineWriter(pipe[1], most_waiting_bytes=1_000_000)
    for _ in range(300):
        writer.write("x" * 9_999 + "\n")
    read, left_out = b"", 0
    while read.count(b"x\n") + left_out < 300:
        read += os.read(pipe[0], 1_000_000)
        left_out = sum(
            int(line.split()[0])
            for line in read.splitlines()
            if line.endswith(b"log lines were left out: they were not read in time")
        )
    assert left_out >= 190


def test_a_reader_that_has_gone_is_no_error(pipe: Pipe) -> None:
    read, write = os.pipe()
    os.close(read)
    writer = LineWriter(write)
    writer.write("a line\n")
    writer.drain(30)
    os.close(write)


def test_what_no_encoding_has_is_escaped(pipe: Pipe) -> None:
    writer = LineWriter(pipe[1])
    writer.write("\ud800\n")
    writer.drain(30)
    assert os.read(pipe[0], 100) == b"\\ud800\n"
