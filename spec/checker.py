"""Explores every state that a small model can reach, breadth first, so what it finds is shortest.

A model has a start and actions. An action maps a state to its next states, each with a line that
says what has happened; a step that breaks a promise leads to `Broken` instead. States are compared
by value. Three kinds of promises:

    steps     no step breaks one, and `wrong` finds none broken in any state
    ends      where a model says which states are an end (`is_over`): from every state, one of these
              can be reached without further faults. A step that remains possible is taken at last
              (strong fairness), so after the last fault every run comes to an end
    judgement `judge` looks at everything that was explored
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

ENDS: Final = "something never ends"

S = TypeVar("S", bound=Hashable)


class Broken(NamedTuple):
    promise: str
    details: str = ""

    def __str__(self) -> str:
        return f"{self.promise}: {self.details}" if self.details else self.promise


Steps = Iterator[tuple[str, S | Broken]]
# By an action's name: the functions of the product that it stands for; none if it happens outside.
StandsFor = Mapping[str, tuple[str, ...]]


class Model(ABC, Generic[S]):
    """Actions are methods named in STANDS_FOR; FAULTS says which of them are faults."""

    STANDS_FOR: ClassVar[StandsFor]
    FAULTS: ClassVar[frozenset[str]] = frozenset()
    HAS_ENDS: ClassVar[bool] = False

    @abstractmethod
    def start(self) -> S: ...

    def wrong(self, state: S) -> Broken | None:
        """The promise that this state breaks."""
        return None

    def is_over(self, state: S) -> bool:
        """Whether everything has come to its end. Only asked if HAS_ENDS."""
        return False

    def normal(self, state: S) -> S:
        """The one of several states that differ in nothing that matters."""
        return state

    def judge(self) -> tuple[Broken, S | None] | None:
        """Called when everything is explored. The state is one that shows what is wrong."""
        return None


class Explored(NamedTuple):
    states: int
    taken: frozenset[str]  # actions that were possible at least once
    broken: Broken | None = None
    steps: tuple[str, ...] = ()  # from the start to where a promise is broken


class Exploration(Generic[S]):
    def __init__(self, model: Model[S]) -> None:
        self._model = model
        self._actions: list[tuple[str, Callable[[S], Steps[S]]]] = [
            (name, getattr(model, name)) for name in model.STANDS_FOR
        ]
        # How each state was reached first; the states are in the order of their distance.
        self._reached: dict[S, tuple[S, str] | None] = {}
        self._before: dict[S, list[S]] = {}  # states from which a step without a fault leads here
        self._taken: set[str] = set()

    def run(self) -> Explored:
        start = self._model.normal(self._model.start())
        self._reached[start] = None
        queue = deque([start])
        while queue:
            state = queue.popleft()
            if (broken := self._model.wrong(state)) is not None:
                return self._found(broken, self._way_to(state))
            for name, action in self._actions:
                for line, after in action(state):
                    self._taken.add(name)
                    if isinstance(after, Broken):
                        return self._found(after, (*self._way_to(state), line))
                    after = self._model.normal(after)
                    if after not in self._reached:
                        self._reached[after] = (state, line)
                        queue.append(after)
                    if self._model.HAS_ENDS and name not in self._model.FAULTS:
                        self._before.setdefault(after, []).append(state)
        return self._judged()

    def _found(self, broken: Broken, steps: tuple[str, ...]) -> Explored:
        return Explored(len(self._reached), frozenset(self._taken), broken, steps)

    def _judged(self) -> Explored:
        if self._model.HAS_ENDS and (stuck := self._first_without_end()) is not None:
            return self._found(Broken(ENDS), self._way_to(stuck))
        if (judgement := self._model.judge()) is not None:
            broken, shown = judgement
            return self._found(broken, () if shown is None else self._way_to(shown))
        return Explored(len(self._reached), frozenset(self._taken))

    def _first_without_end(self) -> S | None:
        """The nearest state from which no end can be reached without further faults."""
        ending = {state for state in self._reached if self._model.is_over(state)}
        left = list(ending)
        while left:
            for before in self._before.get(left.pop(), ()):
                if before not in ending:
                    ending.add(before)
                    left.append(before)
        return next((state for state in self._reached if state not in ending), None)

    def _way_to(self, state: S) -> tuple[str, ...]:
        steps: list[str] = []
        while (reached := self._reached[state]) is not None:
            state, line = reached
            steps.append(line)
        return tuple(reversed(steps))


def explore(model: Model[S]) -> Explored:
    return Exploration(model).run()


class Rules:
    """The rules of a model are the annotated attributes of a subclass, all True."""


def names_of(rules: type[Rules]) -> list[str]:
    return list(rules.__annotations__)


def without(rules: type[Rules], name: str) -> Rules:
    """The rules with one of them switched off, to show what it is for."""
    assert name in names_of(rules), f"there is no rule {name}"
    fewer = rules()
    setattr(fewer, name, False)
    return fewer


class Off(NamedTuple):
    """What shows that a rule is needed: in this scenario the promise is broken without it."""

    scenario: str
    promise: str


class Spec(NamedTuple):
    """A model with its scenarios. `build` takes the name of a scenario, and the rules."""

    name: str
    rules: type[Rules]
    build: Callable[[str, Rules], "Model[Any]"]
    scenarios: Mapping[str, int]  # the least number of states: fewer were not the whole model
    switched_off: Mapping[str, Off]
