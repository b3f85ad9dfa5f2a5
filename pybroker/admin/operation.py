"""What a route takes and what it answers, declared beside it as data.

A declaration checks request bodies (`routing.py`) and describes the route (`description.py`). A
query parameter or a body that is not declared cannot be read.
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
USUAL_BYTES: Final = 64 * 1024
MUCH_BYTES: Final = 512 * 1024  # properties, schemas, long lists
_OPERATION: Final = "pybroker.operation"  # in the scope of a request
_COMPILED: Final = ("path_regex", "path_format", "param_convertors")
ASKED: Final = "pybroker.asked"

# Possible for every route: errors of the request (headers, query, size), of authentication, of the
# disk, and of a broker that is starting or stopping.
_ALWAYS: Final = frozenset((400, 401, 403, 413, 431, 500, 503))
_OF_BODIES: Final = frozenset((408,))  # too slow
_OF_PARTS: Final = frozenset((404,))
_OF_NAMES: Final = frozenset((412,))  # names that are not allowed
_OF_TOPICS: Final = frozenset((405,))  # that are non-persistent, or partitioned


class PartConvertor(Convertor[T]):
    """For a variable in a path; `schema` describes its values."""

    schema: ClassVar[Schema]


@dataclass(frozen=True, slots=True)
class Answer:
    """Without a schema: no content."""

    schema: Schema | None = None
    status: int = 200
    media: str = JSON


NOTHING: Final = Answer(status=204)
DONE: Final = Answer()  # if Apache Pulsar answers just 200
WORDS: Final = Answer(TEXT, media="text/plain")


@dataclass(frozen=True, slots=True)
class Body:
    """`misfit` is the status for a body that does not fit; None: the handler checks it. `at_once`
    is checked before that, for bodies with so many parts that they are read a few in a turn.
    """

    schema: Schema
    required: bool = True
    misfit: int | None = 400
    media: str = JSON
    most_bytes: int = USUAL_BYTES
    at_once: Schema | None = None


def flags(*names: str) -> dict[str, Schema]:
    """Boolean query parameters; anything but true means false, as everywhere."""
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
    changes: bool  # True: changes something, unless refused, and is audited

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
        """All statuses of refusals, for a route with these variables in its path."""
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
    """In the scope of a request, for outer layers: the operation that was found."""

    def __init__(self) -> None:
        self.operation: Operation | None = None  # None: no route, or refused before its handler


def operation_of(request: Request) -> Operation:
    operation: Operation = request.scope[_OPERATION]
    return operation


class DescribedRoute(Route):
    """Its path is compiled when the first request may fit it: the patterns of hundreds of routes
    would hold the loop for 20 ms, and few of them are used.
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
        """Called for attributes that are not set (yet)."""
        if name not in _COMPILED:
            raise AttributeError(name)
        self.path_regex, self.path_format, self.param_convertors = compile_path(self.path)
        return self.__dict__[name]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path: str = scope["path"]
        if path.startswith(self._begins) and path.endswith(self._ends):
            return super().matches(scope)
        return Match.NONE, {}

    def behind(self, guarded: Callable[[Endpoint], Endpoint]) -> "DescribedRoute":
        return DescribedRoute(self.path, guarded(self.endpoint), self.method, self.operation)
