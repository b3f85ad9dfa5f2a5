"""Compares the topics after a run with faults with those after a run without.

Outputs are compared as a multiset, by topic, key and value, or by the part of the value that a
pattern finds (`--identity`). Order is compared by topic and key, and only among first copies, so
that a duplicate does not also count as out of order. An output belongs to an input if it contains
the input's id.
"""

import json
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final

from pybroker.eos_check.settings import ID_PATTERN, Input
from pybroker.eos_check.topics import Output
from pybroker.eos_check.words import printable

Pattern = re.Pattern[bytes] | None
Content = tuple[str, str, bytes]  # topic, key, value or its identifying part
_JUDGE_LIMIT_S: Final = 60.0
_REASON_CHARACTERS: Final = 500


class Promise(Enum):
    """The promises that a run may break, worst first."""

    LOST = "lost"
    PARTIAL = "partial"
    DOUBLED = "doubled"
    UNEXPECTED = "unexpected"
    OUT_OF_ORDER = "out of order"
    STUCK = "stuck"
    REFUSED = "refused by the judge"


@dataclass(frozen=True, slots=True)
class Breach:
    """A broken promise. `ids` are the affected inputs, as far as known."""

    promise: Promise
    text: str
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return printable(f"{self.promise.value}: {self.text}")


def content(output: Output, identity: Pattern) -> Content:
    """The part of an output that is compared."""
    if identity is None:
        return output.topic, output.key, output.value
    found = identity.search(output.value)
    if found is None:
        return output.topic, "", output.value
    return output.topic, "", found[1] if found.re.groups else found[0]


def same(some: Iterable[Output], others: Iterable[Output], identity: Pattern) -> bool:
    """Whether both contain the same messages, in any order."""
    return _counted(some, identity) == _counted(others, identity)


def judge(found: Sequence[Output], expected: Sequence[Output], identity: Pattern) -> list[Breach]:
    """Finds lost, partial, duplicated and unexpected outputs; worst first."""
    have, want = _counted(found, identity), _counted(expected, identity)
    missing, extra = want - have, have - want
    by_id = defaultdict(list)
    for each in want:
        by_id[id_of(each)].append(each)
    breaches = []
    for each, count in missing.items():
        number = id_of(each)
        siblings = [other for other in by_id[number] if number and have[other] >= want[other]]
        if siblings:
            text = f"{shown(each)} is missing{_times(count)}, but {shown(siblings[0])} is there"
            breaches.append(Breach(Promise.PARTIAL, text, (number,)))
        else:
            text = f"{shown(each)} is missing{_times(count)}"
            breaches.append(Breach(Promise.LOST, text, (number,) if number else ()))
    for each in extra:
        number = id_of(each)
        ids = (number,) if number else ()
        if each in want:
            text = f"{shown(each)} is there {have[each]} times instead of {want[each]}"
            breaches.append(Breach(Promise.DOUBLED, text, ids))
        else:
            text = f"{shown(each)} is there, but no run without faults produced it"
            breaches.append(Breach(Promise.UNEXPECTED, text, ids))
    rank = list(Promise)
    return sorted(breaches, key=lambda breach: rank.index(breach.promise))


def disorder(
    found: Sequence[Output], expected: Sequence[Output], identity: Pattern
) -> list[Breach]:
    """The first pair in the wrong order for each topic and key."""
    breaches = []
    wanted = _first_places(expected, identity)
    for line, places in _first_places(found, identity).items():
        known = [each for each in places if each in wanted.get(line, {})]
        order = wanted.get(line, {})
        for one, next_one in pairwise(known):
            if order[one] > order[next_one]:
                text = f"{shown(one)} comes before {shown(next_one)}, of the same key {line[1]}"
                ids = tuple(filter(None, (id_of(one), id_of(next_one))))
                breaches.append(Breach(Promise.OUT_OF_ORDER, text, ids))
                break
    return breaches


def _first_places(
    outputs: Sequence[Output], identity: Pattern
) -> dict[tuple[str, str], dict[Content, int]]:
    """By topic and key, the contents in the order of their first copies. Omits messages without a
    key.
    """
    lines: dict[tuple[str, str], dict[Content, int]] = defaultdict(dict)
    for each in outputs:
        if each.key:
            line = lines[each.topic, each.key]
            line.setdefault(content(each, identity), len(line))
    return lines


def judge_by_command(
    command: Sequence[str], found: Sequence[Output], inputs: Sequence[Input]
) -> list[Breach]:
    """Exit code 0 means accepted; otherwise the command's output is the reason. Raises OSError.

    The command reads JSON: {"input": [{"id", "key", "value"}], "output": [{"topic", "key",
    "value"}]}.
    """
    body = {
        "input": [
            {"id": each.id, "key": each.key, "value": each.value.decode(errors="replace")}
            for each in inputs
        ],
        "output": [
            {"topic": each.topic, "key": each.key, "value": each.value.decode(errors="replace")}
            for each in found
        ],
    }
    try:
        ended = subprocess.run(
            list(command),
            input=json.dumps(body).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_JUDGE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [Breach(Promise.REFUSED, f"the judge did not end within {_JUDGE_LIMIT_S:g} s")]
    if ended.returncode == 0:
        return []
    said = ended.stdout.decode(errors="replace").strip()[-_REASON_CHARACTERS:]
    return [Breach(Promise.REFUSED, said or f"it ended with code {ended.returncode}")]


def outputs_of(ids: Set[str], outputs: Iterable[Output]) -> list[Output]:
    """The outputs that belong to these inputs."""
    return [each for each in outputs if id_of((each.topic, each.key, each.value)) in ids]


def id_of(each: Content) -> str:
    """The id of the input in an output; empty if there is none."""
    found = ID_PATTERN.search(each[2].lower()) or ID_PATTERN.search(each[1].encode())
    return found[0].decode() if found else ""


def shown(each: Content, characters: int = 60) -> str:
    value = printable(each[2].decode(errors="backslashreplace"))
    cut = value if len(value) <= characters else value[:characters] + "…"
    return f"{cut} on {each[0]}"


def by_topic(outputs: Iterable[Output]) -> Mapping[str, int]:
    return Counter(each.topic for each in outputs)


def _counted(outputs: Iterable[Output], identity: Pattern) -> Counter[Content]:
    return Counter(content(each, identity) for each in outputs)


def _times(count: int) -> str:
    return "" if count == 1 else f" {count} times"
