"""What a route takes and what it answers, declared beside it as data.

A declaration checks the bodies that come (`routing.py`) and describes the route to others
(`description.py`). A query parameter or a body that is not declared cannot be read.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, TypeVar

from starlette.convertors import Convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pybroker.base.json_schema import TEXT, TRUTH, Schema

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]
JSON: Final = "application/json"
USUAL_BYTES: Final = 64 * 1024
MUCH_BYTES: Final = 512 * 1024  # properties, schemas, long lists
_OPERATION: Final = "pybroker.operation"  # in the scope of a request
ASKED: Final = "pybroker.asked"

# Anybody may be told these: of the request (headers, query, too large), of who asks, of a disk that
# fails, of a broker that begins or ends.
_ALWAYS: Final = frozenset((400, 401, 403, 413, 431, 500, 503))
_OF_BODIES: Final = frozenset((408,))  # too slow
_OF_PARTS: Final = frozenset((404,))
_OF_NAMES: Final = frozenset((412,))  # that nothing may have
_OF_TOPICS: Final = frozenset((405,))  # that are not persistent, or have partitions


class PartConvertor(Convertor[T]):
    """Of a part of the path; `schema` says which there may be."""

    schema: ClassVar[Schema]


@dataclass(frozen=True, slots=True)
class Answer:
    """Without a schema: no content."""

    schema: Schema | None = None
    status: int = 200
    media: str = JSON


NOTHING: Final = Answer(status=204)
DONE: Final = Answer()  # where Apache Pulsar says 200 and nothing else
WORDS: Final = Answer(TEXT, media="text/plain")


@dataclass(frozen=True, slots=True)
class Body:
    """`misfit` is the status of the refusal; None: whoever reads it looks at it. `at_once` is what
    is looked at before that, where a body has so many parts that they are read a few in a turn.
    """

    schema: Schema
    required: bool = True
    misfit: int | None = 400
    media: str = JSON
    most_bytes: int = USUAL_BYTES
    at_once: Schema | None = None


def flags(*names: str) -> dict[str, Schema]:
    """Query parameters that are true or false; anything but true is false, as everywhere."""
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
    changes: bool  # something, as far as it is not refused: then it is audited

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
        """All statuses that are refusals, of a route with these parts in its path."""
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
    """In the scope of a request, for whoever looks at it from outside: what it turned out to be."""

    def __init__(self) -> None:
        self.operation: Operation | None = None  # None: no route, or refused before its handler


def operation_of(request: Request) -> Operation:
    operation: Operation = request.scope[_OPERATION]
    return operation


class DescribedRoute(Route):
    def __init__(self, path: str, endpoint: Endpoint, method: str, operation: Operation) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method = method
        self.operation = operation

    def behind(self, guarded: Callable[[Endpoint], Endpoint]) -> "DescribedRoute":
        return DescribedRoute(self.path, guarded(self.endpoint), self.method, self.operation)
