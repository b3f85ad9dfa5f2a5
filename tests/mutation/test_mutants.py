"""Tests of the mutants, and that every accepted survivor still exists."""

import gc
import re
from pathlib import Path

import pytest
from live_code import Noting, live_functions, noting_codes, place_of
from mutants import functions, mutants
from syntax import syntax_tree

from pybroker.transaction.buffer.transaction_ranges import TransactionRanges

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''
"""A module."""
LIMIT = 3

class Cursor:
    """A cursor."""

    def move(self, to: int, by: int = 2) -> int:
        """Move."""
        assert to >= 0, "not back"
        if to > 7:
            log.info("moves to %d", to + 1)
        if to > self.end and not self.closed:
            raise ValueError(f"{to} is behind {self.end + 1}")
        self.mark = to + by

        def again(times: int) -> None:
            while times:
                times -= 1

        return again(to)
'''


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "cursor.py"
    path.write_text(SOURCE)
    return path


def changes(path: Path) -> list[str]:
    return [mutant.change for mutant in mutants(path.parent, path)]


def test_operators_conditions_and_statements_are_changed_one_at_a_time(source: Path) -> None:
    found = changes(source)
    assert "to > self.end → to >= self.end" in found
    assert "to > self.end and (not self.closed) → to > self.end or not self.closed" in found
    assert "self.mark = to + by → pass" in found
    assert "to + by → to - by" in found
    assert "return again(to) → return None" in found


def test_what_is_nested_changes_with_its_function(source: Path) -> None:
    assert "times → not times" in changes(source)
    assert {mutant.function for mutant in mutants(source.parent, source)} == {"Cursor.move"}


def test_texts_logging_assertions_and_defaults_are_let_alone(source: Path) -> None:
    text = " ".join(changes(source))
    assert "log." not in text
    assert "self.end + 1" not in text.replace(
        "raise ValueError(f'{to} is behind {self.end + 1}')", ""
    )
    assert not re.search(r"to >= 0|to < 0|LIMIT|2 → 3|7", text)


def test_the_code_of_a_mutant_takes_the_place_of_the_function(source: Path) -> None:
    for mutant in mutants(source.parent, source):
        if mutant.change == "self.mark = to + by → pass":
            assert mutant.code.co_name == "move"
            assert "mark" not in mutant.code.co_names
            break
    else:
        pytest.fail("no such mutant")


def test_functions_are_found_though_they_were_frozen_before() -> None:
    gc.freeze()
    found = live_functions(ROOT)
    gc.freeze()
    place = place_of(TransactionRanges.extend.__code__, ROOT)
    assert found[place] == [TransactionRanges.extend]


def test_functions_that_ran_are_noted_and_have_their_own_code_again() -> None:
    functions = live_functions(ROOT)
    place = place_of(TransactionRanges.extend.__code__, ROOT)
    before = TransactionRanges.extend.__code__
    chosen = {each: found for each, found in functions.items() if each[0] == place[0]}
    noting = Noting(chosen, noting_codes(ROOT, chosen))
    try:
        for _ in range(2):  # each test starts over
            noting.begin()
            assert TransactionRanges.extend.__code__ is not before
            TransactionRanges().extend(1, 2, 3)
            assert TransactionRanges.extend.__code__ is before
            assert place[:2] in noting.ran()
            assert (place[0], "TransactionRanges.__len__") not in noting.ran()
    finally:
        noting.end()
    assert TransactionRanges.__len__.__code__.co_names == ("len", "flat")


@pytest.mark.slow
def test_accepted_survivors_are_still_there() -> None:
    """A reason without its mutant is obsolete."""
    lines = (Path(__file__).parent / "accepted.txt").read_text().splitlines()
    names = [line for line in lines if line and not line.startswith("# ")]
    paths = sorted({name.split(" ", 1)[0] for name in names})
    known = {mutant.name for path in paths for mutant in mutants(ROOT, ROOT / path)}
    assert [name for name in names if name not in known] == []


def test_methods_and_functions_are_found_by_their_qualified_names() -> None:
    tree = syntax_tree(SOURCE)
    assert [name for name, _ in functions(tree)] == ["Cursor.move"]
