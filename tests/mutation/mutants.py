"""Mutants: the code of one function with one operator, condition, constant or statement changed.

Unchanged, because they do not affect behaviour: docstrings, annotations, logging, assertions and
the texts of exceptions. Also unchanged: defaults of arguments, and code that runs at import.
"""

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Final

from syntax import syntax_tree

Function = ast.FunctionDef | ast.AsyncFunctionDef

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
BOOLEAN: Final[dict[type[ast.boolop], type[ast.boolop]]] = {ast.And: ast.Or, ast.Or: ast.And}
LOGGERS: Final = ("log", "logger", "logging")


@dataclass(frozen=True, slots=True)
class Edit:
    """`node.field`, or `node.field[index]`, becomes `new`."""

    node: ast.AST
    field: str
    index: int | None
    new: Any
    shown: ast.AST  # the changed part of the source, for readers

    def swap(self, new: Any) -> Any:
        """Set `new`; returns the old value."""
        if self.index is None:
            old = getattr(self.node, self.field)
            setattr(self.node, self.field, new)
            return old
        place = getattr(self.node, self.field)
        old, place[self.index] = place[self.index], new
        return old


@dataclass(frozen=True, slots=True)
class Mutant:
    """`code` replaces the function's code. `name` consists of path, function and change, without
    the line, so that it survives changes elsewhere in the file.
    """

    path: str
    function: str
    first_line: int  # of the function with its decorators, as in its code object
    line: int
    change: str
    code: CodeType

    @property
    def name(self) -> str:
        return f"{self.path} {self.function}: {self.change}"


def mutants(root: Path, path: Path) -> Iterator[Mutant]:
    """All mutants of one file, in order."""
    tree = syntax_tree(path.read_text())
    label, seen = str(path.relative_to(root)), Counter[str]()
    for qualname, function in functions(tree):
        for edit in edits(function):
            before = shortened(edit.shown)
            old = edit.swap(edit.new)
            change = f"{before} → {shortened(edit.new if edit.shown is old else edit.shown)}"
            code = compiled(function, path, qualname)
            edit.swap(old)
            if code is None:
                continue
            seen[f"{qualname} {change}"] += 1
            number = seen[f"{qualname} {change}"]
            numbered = change if number == 1 else f"{change} ({number})"
            line = getattr(edit.shown, "lineno", function.lineno)
            yield Mutant(label, qualname, first_line(function), line, numbered, code)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """The outermost functions; nested ones change with them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")


def first_line(function: Function) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def compiled(function: Function, path: Path, qualname: str) -> CodeType | None:
    """The function's code, compiled within its classes only: the rest of the module does not
    matter.
    """
    shell: ast.stmt = copy.deepcopy(function)
    for name in reversed(qualname.split(".")[:-1]):
        shell = ast.ClassDef(name, bases=[], keywords=[], body=[shell], decorator_list=[])
        shell.type_params = []
        ast.fix_missing_locations(shell)
    try:
        module = compile(ast.Module([shell], []), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    return find_code(module, qualname, first_line(function))


def find_code(code: CodeType, qualname: str, line: int) -> CodeType | None:
    for constant in code.co_consts:
        if not isinstance(constant, CodeType):
            continue
        if (constant.co_qualname, constant.co_firstlineno) == (qualname, line):
            return constant
        found = find_code(constant, qualname, line)
        if found is not None:
            return found
    return None


def shortened(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())
    return text if len(text) <= 90 else f"{text[:87]}…"


# -- possible changes


def edits(function: Function) -> Iterator[Edit]:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    yield from _block(function, "body", function.body, start=len(function.body) - len(body))


def _block(owner: ast.AST, field: str, body: list[ast.stmt], start: int = 0) -> Iterator[Edit]:
    for index in range(start, len(body)):
        statement = body[index]
        if _is_quiet(statement):
            continue
        instead = _instead_of(statement)
        if instead is not None:
            yield Edit(owner, field, index, ast.copy_location(instead, statement), statement)
        yield from _within(statement)


def _is_quiet(statement: ast.stmt) -> bool:
    """Whether the statement does not affect behaviour: docstrings, `...`, assertions, and logging
    with its conditions.
    """
    if isinstance(statement, ast.Assert | ast.Pass | ast.Global | ast.Nonlocal | ast.Import):
        return True
    if isinstance(statement, ast.If) and not statement.orelse:
        return all(map(_is_quiet, statement.body))
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    return isinstance(value, ast.Constant) or _is_logging(value)


def _is_logging(node: ast.AST) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in LOGGERS
    )


def _instead_of(statement: ast.stmt) -> ast.stmt | None:
    """The replacement of a whole statement; None if only its parts are changed."""
    match statement:
        case ast.Expr() | ast.Raise() | ast.Delete() | ast.AugAssign():
            return ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            return ast.Pass()
        case ast.Return(value=ast.expr() as value) if not _is_constant(value):
            return ast.Return(ast.copy_location(ast.Constant(None), value))
        case ast.Break():
            return ast.Continue()
        case ast.Continue():
            return ast.Break()
    return None


def _is_constant(value: ast.expr) -> bool:
    """Whether the value is a constant or empty: the type checker notices None in its place."""
    empty = isinstance(value, ast.List | ast.Tuple) and not value.elts
    return isinstance(value, ast.Constant) or empty


def _within(node: ast.AST) -> Iterator[Edit]:
    """Changes to the parts of a statement or expression."""
    yield from _of_itself(node)
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "args") and not isinstance(
            node, ast.Call
        ):
            continue  # parts of definitions and lambdas
        if isinstance(node, ast.Raise) or getattr(node, "arg", None) == "strict":
            continue  # texts for people; `strict` of zip is an assertion
        if isinstance(value, ast.AST):
            yield from _within(value)
        elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            nested = isinstance(node, Function) and ast.get_docstring(node) is not None
            yield from _block(node, field, value, start=1 if nested else 0)
        elif isinstance(value, list):
            for part in value:
                if isinstance(part, ast.AST):
                    yield from _within(part)


def _of_itself(node: ast.AST) -> Iterator[Edit]:
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                yield Edit(node, "ops", index, COMPARISONS[type(operator)](), node)
        case ast.BoolOp():
            yield Edit(node, "op", None, BOOLEAN[type(node.op)](), node)
        case ast.BinOp() | ast.AugAssign() if type(node.op) in ARITHMETIC and not _is_text(node):
            yield Edit(node, "op", None, ARITHMETIC[type(node.op)](), node)
        case ast.If() | ast.While() | ast.IfExp() if not isinstance(node.test, ast.Compare):
            yield Edit(node, "test", None, _negated(node.test), node.test)
        case ast.comprehension():
            for index, test in enumerate(node.ifs):
                yield Edit(node, "ifs", index, _negated(test), test)
        case ast.Constant(value=bool() as value):
            yield Edit(node, "value", None, not value, node)
        case ast.Constant(value=int() | float() as number):
            yield Edit(node, "value", None, number + 1, node)


def _is_text(node: ast.AST) -> bool:
    return any(isinstance(part, ast.JoinedStr) for part in ast.iter_child_nodes(node))


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
