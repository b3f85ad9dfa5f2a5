"""Rules for the code: sizes, docstrings, exception handlers, sources of nondeterminism."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest
from syntax import syntax_tree

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = [
    path
    for package in ("managed_ledger", "pybroker", "spec")
    for path in sorted((ROOT / package).rglob("*.py"))
    if not path.stem.endswith("_pb2")
]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
CASES = [path for path in TESTS if path.name.startswith(("test_", "conftest"))]
MAX_LINES = 500
# Longer files, each with the reason why it is one thing.
ONE_THING = {
    "pybroker/cluster/bundle_ownership.py": "the states of a bundle, one machine",
}
MAX_MODULE_DOCSTRING_LINES = 20

# Simulated code: waiting, time and chance come from the loop, a Clock, a random.Random.
SIMULATED = (
    "managed_ledger",
    "pybroker/wire",
    "pybroker/transaction",
    "pybroker/broker",
    "pybroker/server",
    "pybroker/kafka",
    "pybroker/process/app.py",
    "pybroker/client",
)
# The client for threads is not simulated; the asyncio client inside it is. Keys and nonces must
# come from the system's generator: a seed would reveal them.
NOT_SIMULATED = (
    "managed_ledger/storage/one_thread.py",  # called through run_in_executor, which is simulated
    "pybroker/client/blocking/loop_thread.py",
    "pybroker/client/blocking/thread_queue.py",
    "pybroker/client/encryption.py",
)
NONDETERMINISTIC = {
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.sleep",
    "os.urandom",
    "uuid.uuid4",
    "random.random",
    "random.randrange",
    "random.randint",
    "random.choice",
    "random.uniform",
    "threading.Lock",
    "threading.Thread",
}
USER_PACKAGES = (
    "pybroker.client",
    "pybroker.client.database",
    "pybroker.spark",
    "pybroker.testing",
    "pybroker.simulation",
)


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by their file names alone."""
    names = [path.name for path in TESTS if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def dotted_names(text: str) -> Iterator[str]:
    for node in ast.walk(syntax_tree(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def used(text: str, names: set[str]) -> set[str]:
    """The names, like time.sleep, that the text reads or imports; most files are not parsed."""
    spelled = (name for dotted in names for name in (dotted, f"from {dotted.split('.')[0]} import"))
    return names & set(dotted_names(text)) if any(name in text for name in spelled) else set()


# Each rule is one test that reports all violations: a test per file would take longer to collect
# than to run. Parsing is slow, so only files whose text may contain a violation are parsed.


def test_no_file_is_two_things() -> None:
    lengths = {label(path): len(path.read_text().splitlines()) for path in LIBRARY + TESTS}
    long = {name for name, lines in lengths.items() if lines > MAX_LINES}
    assert long == set(ONE_THING), (
        "look for the second thing that a long file is, or say why it is one"
    )


def docstring(text: str) -> str:
    """The module's docstring. The formatter leaves it between three double quotes."""
    found = re.match(r'r?"""(.*?)"""', text, re.DOTALL)
    return found[1].strip() if found else ""


def test_a_module_says_how_it_works() -> None:
    docstrings = {label(path): docstring(path.read_text()) for path in LIBRARY}
    assert not [name for name, text in docstrings.items() if not text and (ROOT / name).read_text()]
    lengths = {name: len(text.splitlines()) for name, text in docstrings.items()}
    assert not {n: lines for n, lines in lengths.items() if lines > MAX_MODULE_DOCSTRING_LINES}


CATCHES_ALL = re.compile(r"\bexcept\s*(:|\(?\s*\w*Exception\b)")


def swallowed(path: Path) -> Iterator[str]:
    text = path.read_text()
    for node in ast.walk(syntax_tree(text)) if CATCHES_ALL.search(text) else ():
        if isinstance(node, ast.ExceptHandler):
            catches_all = isinstance(node.type, ast.Name) and node.type.id.endswith("Exception")
            does_nothing = all(isinstance(step, ast.Pass) for step in node.body)
            if node.type is None or (catches_all and does_nothing):
                yield f"{label(path)}:{node.lineno}"


def test_no_exception_is_swallowed_unseen() -> None:
    assert not [where for path in LIBRARY + CASES for where in swallowed(path)]


def test_tests_do_not_sleep() -> None:
    assert not [label(path) for path in CASES if used(path.read_text(), {"time.sleep"})]


def test_time_and_chance_are_handed_in() -> None:
    found = {
        label(path): uses
        for path in LIBRARY
        if label(path).startswith(SIMULATED) and label(path) not in NOT_SIMULATED
        if (uses := used(path.read_text(), NONDETERMINISTIC))
    }
    assert not found, "take a clock or an rng"


def test_documents_that_comments_name_are_there() -> None:
    named = {
        (label(path), name)
        for path in LIBRARY + TESTS
        for line in path.read_text().splitlines()
        if ".md" in line
        for name in re.findall(r"[\w/-]+\.md\b", line)
    }
    assert not [pair for pair in named if not (ROOT / pair[1]).exists()], "readers have them not"


def is_state_table(table: dict[object, object]) -> bool:
    return (
        bool(table)
        and all(isinstance(state, Enum) for state in table)
        and all(isinstance(allowed, set | frozenset) for allowed in table.values())
    )


def state_tables() -> Iterator[tuple[str, dict[Enum, set[object]]]]:
    """Module-level dicts from the members of an enum to sets: transitions, or what is allowed."""
    for path in LIBRARY:
        if path.stem == "__main__":
            continue
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for name, table in vars(module).items():
            if name.isupper() and isinstance(table, dict) and is_state_table(table):
                yield f"{module.__name__}.{name}", table


def test_state_tables_are_total() -> None:
    tables = dict(state_tables())
    for name, table in tables.items():
        states = set(type(next(iter(table))))
        assert set(table) == states, f"{name} lacks {states - set(table)}"
    assert any(name.endswith("TXN_TRANSITIONS") for name in tables)


@pytest.mark.parametrize("package", USER_PACKAGES)
def test_what_users_import_is_documented(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__, f"{package} names no public API"
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{package}.{name} has no docstring"
