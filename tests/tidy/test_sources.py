"""What the code looks like: sizes, docstrings, exception handlers, sources of nondeterminism."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = [
    path
    for package in ("managed_ledger", "pybroker")
    for path in sorted((ROOT / package).rglob("*.py"))
    if not path.stem.endswith("_pb2")
]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
CASES = [path for path in TESTS if path.name.startswith(("test_", "conftest"))]
MAX_LINES = 500
MAX_MODULE_DOCSTRING_LINES = 20

# Simulated code: waiting, time and chance come from the loop, a Clock, a random.Random.
SIMULATED = (
    "managed_ledger",
    "pybroker/wire",
    "pybroker/transaction",
    "pybroker/broker",
    "pybroker/server",
    "pybroker/app.py",
    "pybroker/client",
)
# The client's front for threads: what is simulated is the asyncio client inside. Keys and nonces
# must come from the system's generator: a seed would give them away.
NOT_SIMULATED = (
    "managed_ledger/storage/one_thread.py",  # behind the loop's run_in_executor, which is simulated
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
USER_PACKAGES = ("pybroker.client", "pybroker.spark", "pybroker.testing")


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by their names alone."""
    names = [path.name for path in TESTS if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def dotted_calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", LIBRARY + TESTS, ids=label)
def test_no_file_is_two_things(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{label(path)} has {lines} lines: look for the second thing it is"


@pytest.mark.parametrize("path", LIBRARY, ids=label)
def test_a_module_says_how_it_works(path: Path) -> None:
    source = path.read_text()
    docstring = ast.get_docstring(ast.parse(source)) or ""
    assert docstring or not source.strip(), f"{label(path)} has no docstring"
    assert len(docstring.splitlines()) <= MAX_MODULE_DOCSTRING_LINES


@pytest.mark.parametrize("path", LIBRARY + CASES, ids=label)
def test_no_exception_is_swallowed_unseen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            where = f"{label(path)}:{node.lineno}"
            assert node.type is not None, f"{where}: a bare except"
            catches_all = isinstance(node.type, ast.Name) and node.type.id.endswith("Exception")
            does_nothing = all(isinstance(step, ast.Pass) for step in node.body)
            assert not (catches_all and does_nothing), f"{where}: swallows every exception"


@pytest.mark.parametrize("path", CASES, ids=label)
def test_tests_do_not_sleep(path: Path) -> None:
    assert "time.sleep" not in set(dotted_calls(ast.parse(path.read_text())))


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in LIBRARY
        if label(path).startswith(SIMULATED) and label(path) not in NOT_SIMULATED
    ],
    ids=label,
)
def test_time_and_chance_are_handed_in(path: Path) -> None:
    found = NONDETERMINISTIC & set(dotted_calls(ast.parse(path.read_text())))
    assert not found, f"{label(path)} uses {', '.join(sorted(found))}: take a clock or an rng"


@pytest.mark.parametrize("path", LIBRARY + TESTS, ids=label)
def test_documents_that_comments_name_are_there(path: Path) -> None:
    for name in re.findall(r"[\w/-]+\.md\b", path.read_text()):
        assert (ROOT / name).exists(), f"{label(path)} points to {name}, which readers do not have"


def is_state_table(table: dict[object, object]) -> bool:
    return (
        bool(table)
        and all(isinstance(state, Enum) for state in table)
        and all(isinstance(allowed, set | frozenset) for allowed in table.values())
    )


def state_tables() -> Iterator[tuple[str, dict[Enum, set[object]]]]:
    """Module-level dicts from the members of one enum to sets: what may follow, what is allowed."""
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
