"""The product's functions in this process, and the replacement of their code."""

import ast
import builtins
import gc
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

from mutants import find_code, first_line, functions
from syntax import syntax_tree

PACKAGES: Final = ("managed_ledger", "pybroker")
_NOTE: Final = "__ran__"

Key = tuple[str, str]  # of a function: path, qualified name
Place = tuple[str, str, int]  # path, qualified name, first line
Functions = dict[Place, list[FunctionType]]


def live_functions(root: Path) -> Functions:
    """All functions of the product that are not nested, by place."""
    found: Functions = {}
    gc.unfreeze()  # frozen objects are not listed
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and "<" not in thing.__code__.co_qualname:
            path = Path(thing.__code__.co_filename)
            if path.is_relative_to(root) and path.relative_to(root).parts[0] in PACKAGES:
                found.setdefault(place_of(thing.__code__, root), []).append(thing)
    return found


def place_of(code: CodeType, root: Path) -> Place:
    path = str(Path(code.co_filename).relative_to(root))
    return path, code.co_qualname, code.co_firstlineno


def put_in_place(functions: list[FunctionType], code: CodeType) -> bool:
    try:
        for function in functions:
            function.__code__ = code
    except ValueError:  # the new code has other free variables
        return False
    return bool(functions)


# -- which functions run


def noting_codes(root: Path, places: Iterable[Place]) -> dict[Place, CodeType]:
    """The functions' code with a call of a note at the beginning; its argument is the index of the
    place in the result.
    """
    by_path: dict[str, set[Place]] = {}
    for place in places:
        by_path.setdefault(place[0], set()).add(place)
    found: dict[Place, CodeType] = {}
    for path, wanted in by_path.items():
        tree = syntax_tree((root / path).read_text())
        numbered: dict[Place, int] = {}
        for name, function in functions(tree):
            if (place := (path, name, first_line(function))) in wanted:
                numbered[place] = len(found) + len(numbered)
                at = 1 if ast.get_docstring(function) is not None else 0
                function.body.insert(at, _note(numbered[place], function.body[0]))
        module = compile(tree, str(root / path), "exec", dont_inherit=True)
        for place in numbered:
            code = find_code(module, place[1], place[2])
            assert code is not None, place
            found[place] = code
    return found


def _note(number: int, beside: ast.stmt) -> ast.stmt:
    call = ast.Call(ast.Name(_NOTE, ast.Load()), [ast.Constant(number)], [])
    return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), beside))


class Noting:
    """Notes which functions run. The first call of a function since `begin` notes it and restores
    its own code, so this costs almost nothing; a tracer would be called for every call.

    Nested functions that are called after their outer function has returned are not noted.
    """

    def __init__(self, functions: Functions, codes: Mapping[Place, CodeType]) -> None:
        self._functions = [functions[place] for place in codes]
        self._keys: list[Key] = [(path, name) for path, name, _ in codes]
        self._own = [found[0].__code__ for found in self._functions]
        self._noting = list(codes.values())
        self._ran = set(range(len(codes)))
        setattr(builtins, _NOTE, self._note)

    def _note(self, number: int) -> None:
        self._ran.add(number)
        put_in_place(self._functions[number], self._own[number])

    def begin(self) -> None:
        ran, self._ran = self._ran, set()
        for number in ran:
            put_in_place(self._functions[number], self._noting[number])

    def end(self) -> None:
        for found, code in zip(self._functions, self._own, strict=True):
            put_in_place(found, code)
        delattr(builtins, _NOTE)

    def ran(self) -> set[Key]:
        return {self._keys[number] for number in self._ran}
