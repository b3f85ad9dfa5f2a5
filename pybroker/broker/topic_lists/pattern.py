"""Regular expressions over topic names with bounded matching time.

A pattern comes from a client, and fifty characters can keep Python's `re`, which backtracks, busy
for hours. Here a pattern becomes a Glushkov automaton: its characters are positions, a set of
positions is one integer, and each character of a name is examined once. A pattern that needs more
(lookaround, back references) is refused; clients then filter the names themselves.

Syntax: what Java, Go and Python have in common, and Java's quotes \\Q…\\E.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Final

MAX_POSITIONS: Final = 200
_MAX_PATTERN: Final = 1000  # characters, whatever the configuration allows
_MAX_REPEAT: Final = 1000
_CACHED: Final = 2000  # entries of a cache; a full one is emptied
_SCHEME: Final = "://"
_SPECIAL: Final = "()[]{}|*+?.\\^$"

Range = tuple[str, str]
Ranges = tuple[Range, ...]
_DIGITS: Final[Ranges] = (("0", "9"),)
_WORDS: Final[Ranges] = (("a", "z"), ("A", "Z"), ("0", "9"), ("_", "_"))
_SPACES: Final[Ranges] = ((" ", " "), ("\t", "\r"))
_CLASSES: Final = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class BadPattern(ValueError):
    """The text is not a pattern, or not a supported one; the error's text says why."""


@dataclass(frozen=True, slots=True)
class _Characters:
    ranges: Ranges
    negated: bool = False
    any_case: bool = False

    def has(self, character: str) -> bool:
        found = self._within(character)
        if self.any_case and not found:
            found = self._within(character.lower()) or self._within(character.upper())
        return found is not self.negated

    def _within(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges)


@dataclass(frozen=True, slots=True)
class _Part:
    """Part of an automaton: first and last positions, and whether it may be empty."""

    nullable: bool
    first: int
    last: int


_NOTHING: Final = _Part(True, 0, 0)


class _Automaton:
    def __init__(self) -> None:
        self.characters: list[_Characters] = []
        self.follow: list[int] = []  # by position: the possible next positions

    def one(self, characters: _Characters) -> _Part:
        if len(self.characters) >= MAX_POSITIONS:
            raise BadPattern(f"it expands to more than {MAX_POSITIONS} characters")
        bit = 1 << len(self.characters)
        self.characters.append(characters)
        self.follow.append(0)
        return _Part(False, bit, bit)

    def then(self, left: _Part, right: _Part) -> _Part:
        self._link(left.last, right.first)
        return _Part(
            left.nullable and right.nullable,
            left.first | right.first if left.nullable else left.first,
            left.last | right.last if right.nullable else right.last,
        )

    def either(self, left: _Part, right: _Part) -> _Part:
        nullable = left.nullable or right.nullable
        return _Part(nullable, left.first | right.first, left.last | right.last)

    def loop(self, part: _Part) -> _Part:
        self._link(part.last, part.first)
        return part

    def _link(self, lasts: int, firsts: int) -> None:
        for at in _bits(lasts):
            self.follow[at] |= firsts


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


# A piece of a pattern: adds itself to an automaton, once for each possible repetition.
_Node = Callable[[_Automaton], _Part]


def _single(characters: _Characters, automaton: _Automaton) -> _Part:
    return automaton.one(characters)


def _sequence(nodes: Sequence[_Node], automaton: _Automaton) -> _Part:
    return reduce(automaton.then, (node(automaton) for node in nodes), _NOTHING)


def _choice(nodes: Sequence[_Node], automaton: _Automaton) -> _Part:
    return reduce(automaton.either, (node(automaton) for node in nodes))


def _repeated(node: _Node, least: int, most: int | None, automaton: _Automaton) -> _Part:
    whole = _NOTHING
    for _ in range(max(least, 1) if most is None else most):
        part = node(automaton)
        if not (part.first or part.last):
            return _NOTHING  # empty, however many times
        whole = automaton.then(whole, part) if least > 0 else _then_maybe(automaton, whole, part)
        least -= 1
    if most is None:
        looped = automaton.loop(part)
        whole = _Part(whole.nullable, whole.first, whole.last | looped.last)
    return whole


def _then_maybe(automaton: _Automaton, left: _Part, right: _Part) -> _Part:
    return automaton.then(left, _Part(True, right.first, right.last))


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._any_case = False

    def parse(self) -> _Node:
        if self._text.startswith("(?i)"):
            self._any_case, self._at = True, 4
        self._skip("^")
        node = self._alternatives(0)
        if self._at < len(self._text):
            raise BadPattern(f"the closing bracket at {self._at} has no opening bracket")
        return node

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        if not (character := self._peek()):
            raise BadPattern("it ends in the middle of an expression")
        self._at += 1
        return character

    def _skip(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _alternatives(self, depth: int) -> _Node:
        branches = [self._branch(depth)]
        while self._skip("|"):
            branches.append(self._branch(depth))
        return branches[0] if len(branches) == 1 else partial(_choice, branches)

    def _branch(self, depth: int) -> _Node:
        nodes: list[_Node] = []
        while (character := self._peek()) and character not in "|)":
            if character == "$" and not depth and self._at == len(self._text) - 1:
                self._at += 1
            elif self._skip("\\Q"):
                nodes.extend(map(self._literal, self._quoted()))
            else:
                nodes.append(self._with_quantifier(self._atom(depth)))
        return partial(_sequence, nodes)

    def _quoted(self) -> str:
        end = self._text.find("\\E", self._at)
        end = len(self._text) if end < 0 else end
        quoted, self._at = self._text[self._at : end], end + 2
        return quoted

    def _atom(self, depth: int) -> _Node:
        character = self._next()
        if character == "(":
            return self._group(depth)
        if character == "[":
            return self._of(self._bracketed())
        if character == ".":
            return self._of(_Characters((), negated=True))
        if character == "\\":
            return self._of(self._escaped())
        if character in _SPECIAL:
            raise BadPattern(f"{character} is not allowed at this position")
        return self._literal(character)

    def _literal(self, character: str) -> _Node:
        return self._of(_Characters(((character, character),), any_case=self._any_case))

    def _of(self, characters: _Characters) -> _Node:
        return partial(_single, characters)

    def _group(self, depth: int) -> _Node:
        if self._skip("?") and not self._skip(":"):
            self._group_name()
        if depth >= _MAX_PATTERN // 10:
            raise BadPattern("its groups are nested too deeply")
        node = self._alternatives(depth + 1)
        if not self._skip(")"):
            raise BadPattern("a bracket is not closed")
        return node

    def _group_name(self) -> None:
        named = self._skip("P<") or self._skip("<")
        end = self._text.find(">", self._at)
        if not named or end < 0 or not self._text[self._at : end].isidentifier():
            raise BadPattern("lookaround and inline flags are not supported")
        self._at = end + 1

    def _with_quantifier(self, node: _Node) -> _Node:
        limits = self._limits()
        if limits is None:
            return node
        if self._peek() == "+":
            raise BadPattern("possessive quantifiers are not supported")
        self._skip("?")  # a reluctant quantifier matches the same names
        if self._peek() in ("*", "+", "?", "{"):
            raise BadPattern("it applies a quantifier to a quantifier")
        return partial(_repeated, node, *limits)

    def _limits(self) -> tuple[int, int | None] | None:
        if self._skip("*"):
            return 0, None
        if self._skip("+"):
            return 1, None
        if self._skip("?"):
            return 0, 1
        return self._counted() if self._skip("{") else None

    def _counted(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        least, comma, most = self._text[self._at : max(end, 0)].partition(",")
        if end < 0 or not _is_count(least) or not (not most or _is_count(most)):
            raise BadPattern("a count in braces must be {2}, {2,} or {2,5}")
        self._at = end + 1
        limits = int(least), int(most) if most else None if comma else int(least)
        if limits[1] is not None and limits[1] < limits[0]:
            raise BadPattern("a count in braces has a maximum below its minimum")
        return limits

    def _escaped(self) -> _Characters:
        character = self._next()
        if character.lower() in _CLASSES:
            return _Characters(_CLASSES[character.lower()], negated=character.isupper())
        literal = self._escaped_literal(character)
        return _Characters(((literal, literal),), any_case=self._any_case)

    def _escaped_literal(self, character: str) -> str:
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character.isalnum():
            raise BadPattern(f"\\{character} is not supported")
        return character

    def _bracketed(self) -> _Characters:
        negated = self._skip("^")
        ranges: list[Range] = []
        while not ranges or self._peek() != "]":
            ranges.extend(self._range())
        self._at += 1
        return _Characters(tuple(ranges), negated, self._any_case)

    def _range(self) -> Ranges:
        low = self._in_brackets()
        if not isinstance(low, str):
            return low
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] == "]":
            return ((low, low),)
        self._at += 1
        high = self._in_brackets()
        if not isinstance(high, str) or high < low:
            raise BadPattern("a range in brackets must go from a character to a later one")
        return ((low, high),)

    def _in_brackets(self) -> str | Ranges:
        """A character, or the ranges of a class."""
        character = self._next()
        if character == "[" or (character == "&" and self._peek() == "&"):
            raise BadPattern("nested character classes are not supported")
        if character != "\\":
            return character
        character = self._next()
        if character in _CLASSES:
            return _CLASSES[character]
        return self._escaped_literal(character)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text[:5]) <= _MAX_REPEAT and len(text) < 5


class TopicPattern:
    """Matches whole names, without their domain; `steps` counts the work done."""

    def __init__(self, text: str) -> None:
        """Anything before `://` is ignored. Raises BadPattern."""
        if len(text) > _MAX_PATTERN:
            raise BadPattern(f"it has more than {_MAX_PATTERN} characters")
        self.text = text
        self.steps = 0
        automaton = _Automaton()
        whole = _Parser(text.split(_SCHEME, 1)[-1]).parse()(automaton)
        self._whole = whole
        self._characters = automaton.characters
        self._follow = automaton.follow
        self._having: dict[str, int] = {}  # positions, by a character that they accept
        self._moves: dict[tuple[int, str], tuple[int, int]] = {}

    def matches(self, name: str) -> bool:
        hit, to_come = 0, self._whole.first
        moves = self._moves
        for character in name:
            move = moves.get((to_come, character)) or self._move(to_come, character)
            hit, to_come = move
            if not hit:
                break
        self.steps += len(name) + 1
        return bool(hit & self._whole.last) if name else self._whole.nullable

    def rest(self) -> None:
        """Frees memory until the next match."""
        self._moves.clear()
        self._having.clear()

    def _move(self, to_come: int, character: str) -> tuple[int, int]:
        """The positions that accept this character, and the positions that may follow them."""
        hit = to_come & self._positions_having(character)
        behind = reduce(or_, (self._follow[at] for at in _bits(hit)), 0)
        self.steps += hit.bit_count() // 4
        if len(self._moves) >= _CACHED:
            self._moves.clear()
        self._moves[to_come, character] = hit, behind
        return hit, behind

    def _positions_having(self, character: str) -> int:
        having = self._having.get(character)
        if having is None:
            of_all = (
                1 << at for at, wanted in enumerate(self._characters) if wanted.has(character)
            )
            self.steps += len(self._characters)
            if len(self._having) >= _CACHED:
                self._having.clear()
            having = self._having[character] = sum(of_all)
        return having
