"""Declares what a route takes and answers, as data beside the route.

A declaration checks request bodies (`routing.py`) and describes the route (`description.py`).
Undeclared query parameters and bodies cannot be read.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeVar

from starlette.convertors import Convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, compile_path
from starlette.types import Scope

from pybroker.base.json_schema import TEXT, TRUTH, Schema

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]
JSON: Final = "application/json"
RAW: Final = "application/octet-stream"
USUAL_BYTES: Final = 64 * 1024
MUCH_BYTES: Final = 512 * 1024  # for properties, schemas, long lists
_OPERATION: Final = "pybroker.operation"  # key in the scope of a request
_COMPILED: Final = ("path_regex", "path_format", "param_convertors")
ASKED: Final = "pybroker.asked"

# Statuses of every route: errors of the request (headers, query, size), of authentication, of the
# disk, and of a broker that is starting or stopping.
_ALWAYS: Final = frozenset((400, 401, 403, 413, 415, 431, 500, 503))
_OF_BODIES: Final = frozenset((408,))  # too slow
_OF_PARTS: Final = frozenset((404,))
_OF_NAMES: Final = frozenset((412,))  # names that are not allowed
_OF_TOPICS: Final = frozenset((405,))  # non-persistent or partitioned topics


class PartConvertor(Convertor[T]):
    """Converts a variable in a path. `schema` describes its values."""

    schema: ClassVar[Schema]


@dataclass(frozen=True, slots=True)
class Answer:
    """A possible response; without a schema it has no content."""

    schema: Schema | None = None
    status: int = 200
    media: str = JSON


NOTHING: Final = Answer(status=204)
DONE: Final = Answer()  # where Apache Pulsar answers just 200
WORDS: Final = Answer(TEXT, media="text/plain")


@dataclass(frozen=True, slots=True)
class Body:
    """A request body. `misfit` is the status for a body that does not fit the schema; None: the
    handler checks the body. `at_once` is for bodies with many parts: it replaces `schema` in the
    check of the whole body, and the handler checks the parts, a few per turn.
    """

    schema: Schema
    required: bool = True
    misfit: int | None = 400
    media: str = JSON
    most_bytes: int = USUAL_BYTES
    at_once: Schema | None = None
    or_bytes: bool = False  # the route also takes application/octet-stream


def flags(*names: str) -> dict[str, Schema]:
    """Boolean query parameters. Any value but "true" means false, on all routes."""
    return dict.fromkeys(names, TRUTH)


class Documented(Protocol):
    __doc__: str | None


@dataclass(frozen=True, slots=True)
class Operation:
    answers: tuple[Answer, ...]
    query: Mapping[str, Schema]
    body: Body | None
    refuses: frozenset[int]
    summary: str
    changes: bool  # the request changes something unless it is refused, and is audited

    @classmethod
    def declared(
        cls,
        answers: Schema | Answer | Iterable[Answer],
        query: Mapping[str, Schema],
        body: Schema | Body | None,
        refuses: Iterable[int],
        handler: Documented,
        changes: bool,
    ) -> "Operation":
        if isinstance(answers, dict):
            answers = Answer(answers)
        return cls(
            (answers,) if isinstance(answers, Answer) else tuple(answers),
            query,
            Body(body) if isinstance(body, dict) else body,
            frozenset(refuses),
            " ".join((handler.__doc__ or "").split("\n\n")[0].split()),
            changes,
        )

    def begin(self, request: Request) -> None:
        request.scope[_OPERATION] = self
        if (asked := request.scope.get(ASKED)) is not None:
            asked.operation = self

    def refusals(self, parts: Iterable[str]) -> list[int]:
        """All statuses with which the route may refuse a request. `parts` are the variables in its
        path.
        """
        parts = set(parts)
        return sorted(
            _ALWAYS
            | self.refuses
            | (_OF_BODIES if self.body else frozenset())
            | (_OF_PARTS if parts else frozenset())
            | (_OF_NAMES if parts & {"tenant", "namespace", "topic"} else frozenset())
            | (_OF_TOPICS if "topic" in parts else frozenset())
        )


class Asked:
    """Tells outer stages, by the request's scope, which operation handles the request."""

    def __init__(self) -> None:
        self.operation: Operation | None = None  # None: no route, or refused before the handler


def operation_of(request: Request) -> Operation:
    operation: Operation = request.scope[_OPERATION]
    return operation


class DescribedRoute(Route):
    """A route whose path is compiled when the first request may match it. Compiling the patterns of
    all routes would block the loop for 20 ms, and few of them are used.
    """

    def __init__(self, path: str, endpoint: Endpoint, method: str, operation: Operation) -> None:
        super().__init__("/", endpoint, methods=[method])
        self.path = path
        self.method = method
        self.operation = operation
        self._begins, self._ends = path.partition("{")[0], path.rpartition("}")[2]
        for name in _COMPILED:
            delattr(self, name)

    def __getattr__(self, name: str) -> Any:
        """Compiles the path. Python calls this only for attributes that are not set yet."""
        if name not in _COMPILED:
            raise AttributeError(name)
        self.path_regex, self.path_format, self.param_convertors = compile_path(self.path)
        return self.__dict__[name]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path: str = scope["path"]
        if path.startswith(self._begins) and path.endswith(self._ends):
            return super().matches(scope)
        return Match.NONE, {}

    def guarded_by(self, guarded: Callable[[Endpoint], Endpoint]) -> "DescribedRoute":
        return DescribedRoute(self.path, guarded(self.endpoint), self.method, self.operation)
