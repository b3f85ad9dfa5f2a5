"""The promises of every pipeline: nothing lost, duplicated, partial, torn, or out of order.

They are judged when nothing moves any more: from the topics, from the subscriptions of the inputs,
and from the answers about transactions that the client received. An input that is in its topic
twice must be processed twice, unless its publisher doubled it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pybroker.simulation.declaring import OutputSpec, Record, ScenarioError, encoded

_SHOWN: Final = 60  # characters of a message
_MOST: Final = 20  # violations of one kind


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise as a sentence; `about` lists its messages and transactions."""

    kind: str
    text: str
    about: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(slots=True)
class SeenTransaction:
    """The client's knowledge of one transaction."""

    name: str
    committed: bool | None = None  # None: the client does not know
    stored: list[tuple[str, tuple[int, int, int], str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Account:
    """The data by which the promises are judged. Lists are in the order of the topics."""

    inputs: Mapping[str, Sequence[Record]]  # by topic
    outputs: Mapping[str, Sequence[Record]]
    rules: Sequence[OutputSpec]
    # By input topic and subscription: the positions that are not acknowledged.
    left: Mapping[tuple[str, str], frozenset[tuple[int, int, int]]]
    transactions: Sequence[SeenTransaction] = ()
    rested_s: float = 0.0  # the time from the last fault until then
    # How many copies of an input were stored in excess, and need not be processed.
    spare: Mapping[bytes, int] = field(default_factory=dict)


def shown(data: bytes) -> str:
    """A message in a form for people: printable, short, quoted."""
    text = repr(data.decode("utf-8", "backslashreplace"))
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 2]}…{text[0]}"


def judge(account: Account) -> list[Violation]:
    matched = _Matching(account)
    return [
        *_limited(_missing(account, matched)),
        *_limited(_doubled(account, matched)),
        *_limited(_unexpected(matched)),
        *_limited(_torn(account, matched)),
        *_limited(_transactions_in_part(account)),
        *_limited(_disordered(account, matched)),
    ]


def _limited(found: Iterator[Violation]) -> list[Violation]:
    everything = list(found)
    if len(everything) <= _MOST:
        return everything
    kind = everything[0].kind
    more = Violation(kind, f"and {len(everything) - _MOST} more like these")
    return [*everything[:_MOST], more]


class _Matching:
    """Matches outputs with the inputs that produced them."""

    def __init__(self, account: Account) -> None:
        self.times = Counter(r.data for records in account.inputs.values() for r in records)
        self.spare = account.spare
        # By output topic, then by input: the expected number, and the matching records.
        self.wanted: dict[str, dict[bytes, Counter[bytes]]] = {}
        self.found: dict[str, dict[bytes, list[tuple[int, Record]]]] = {}
        self.unexpected: list[Record] = []
        for rule in account.rules:
            records = account.outputs.get(rule.topic, ())
            if rule.expect is None:
                self._by_content(rule.topic, records)
            else:
                self._by_expectation(rule, records)

    def _by_content(self, topic: str, records: Sequence[Record]) -> None:
        self.wanted[topic] = {data: Counter({data: n}) for data, n in self.times.items()}
        found = self.found[topic] = {data: [] for data in self.times}
        patterns = {data: re.compile(_whole(data)) for data in self.times}
        for place, record in enumerate(records):
            for data, pattern in patterns.items():
                if data in record.data and pattern.search(record.data):
                    found[data].append((place, record))
        if self.times and not any(found.values()):
            self._by_glued_content(found, records)

    def _by_glued_content(
        self, found: dict[bytes, list[tuple[int, Record]]], records: Sequence[Record]
    ) -> None:
        """For topics where no input is a separate word, as in `"invoice" + order`: matches the
        longest input.
        """
        longest_first = sorted(self.times, key=len, reverse=True)
        pattern = re.compile(b"|".join(map(re.escape, longest_first)))
        for place, record in enumerate(records):
            for data in dict.fromkeys(pattern.findall(record.data)):
                found[data].append((place, record))

    def _by_expectation(self, rule: OutputSpec, records: Sequence[Record]) -> None:
        assert rule.expect is not None
        wanted = self.wanted[rule.topic] = {}
        found = self.found[rule.topic] = {data: [] for data in self.times}
        makers: dict[bytes, list[bytes]] = {}
        for data, times in self.times.items():
            expected = Counter(_several(rule, data))
            wanted[data] = Counter({made: count * times for made, count in expected.items()})
            for made in expected:
                makers.setdefault(made, []).append(data)
        shares = {
            made: [d for d in of for _ in range(wanted[d][made])] for made, of in makers.items()
        }
        for place, record in enumerate(records):
            of = shares.get(record.data)
            if of is None:
                self.unexpected.append(record)
            else:  # one after the other; surplus records belong to the last
                found[of.pop(0) if len(of) > 1 else of[0]].append((place, record))

    def count(self, topic: str, data: bytes) -> int:
        return len(self.found[topic][data])

    def missing(self, topic: str, data: bytes) -> int:
        wanted, times = self.wanted[topic][data], self.times[data]
        least = times - self.spare.get(data, 0)
        return self._lacking(
            topic, data, Counter({m: n // times * least for m, n in wanted.items()})
        )

    def surplus(self, topic: str, data: bytes) -> int:
        wanted = self.wanted[topic][data]
        return self.count(topic, data) + self._lacking(topic, data, wanted) - wanted.total()

    def _lacking(self, topic: str, data: bytes, wanted: Counter[bytes]) -> int:
        if set(wanted) <= {data}:
            return max(0, wanted.total() - self.count(topic, data))
        return (wanted - Counter(record.data for _, record in self.found[topic][data])).total()


def _whole(data: bytes) -> bytes:
    """A pattern for `data` as a whole word: order-1 is not in order-12."""
    before = rb"(?<![0-9A-Za-z_])" if data[:1].isalnum() else b""
    behind = rb"(?![0-9A-Za-z_])" if data[-1:].isalnum() else b""
    return before + re.escape(data) + behind


def _several(rule: OutputSpec, data: bytes) -> list[bytes]:
    """The outputs that `expect` returns for an input. Raises ScenarioError."""
    assert rule.expect is not None
    made = rule.expect(data)
    if isinstance(made, bytes | str):
        return [encoded(made)]
    if not isinstance(made, Iterable):
        raise ScenarioError(
            f"`expect` of {rule.topic} returns {made!r:.80} for {shown(data)}: return the data of "
            "a message, or a list"
        )
    return [encoded(each) for each in made]


def _missing(account: Account, matched: _Matching) -> Iterator[Violation]:
    for topic, records in account.inputs.items():
        for record in dict.fromkeys(each.data for each in records):
            wanted = [rule.topic for rule in account.rules if matched.wanted[rule.topic][record]]
            lacks = [name for name in wanted if matched.missing(name, record)]
            if not lacks:
                continue
            there = [name for name in wanted if matched.count(name, record)]
            state = _state(account, topic, records, record)
            name = shown(record)
            if there:
                text = f"{name} is visible in part: in {_list(there)}, not in {_list(lacks)}"
                if there == lacks:
                    text = f"{name} is visible in part in {_list(there)}"
                yield Violation("PARTIAL", f"{text}; {state}", (name,))
            else:
                yield Violation("LOST", f"nothing of {name} is in {_list(lacks)}; {state}", (name,))


def _state(account: Account, topic: str, records: Sequence[Record], data: bytes) -> str:
    places = {record.position for record in records if record.data == data}
    of_topic = {name: left for (of, name), left in account.left.items() if of == topic}
    if not of_topic:
        return f"{topic} has no subscription"
    waiting = [name for name, left in of_topic.items() if places & left]
    if waiting:
        return f"{account.rested_s:.0f} s after the faults {_list(waiting)} has not acknowledged it"
    return f"it is acknowledged on {_list(of_topic)}, so it will not be redelivered"


def _doubled(account: Account, matched: _Matching) -> Iterator[Violation]:
    for rule in account.rules:
        for data in matched.wanted[rule.topic]:
            found = matched.found[rule.topic][data]
            if matched.surplus(rule.topic, data) > 0:
                made = Counter(record.data for _, record in found)
                often = [f"{shown(what)} {count} times" for what, count in made.items()]
                text = f"{shown(data)} was processed again: {rule.topic} has {', '.join(often)}"
                names = (shown(data), *(shown(what) for what in made))
                yield Violation("DOUBLED", text, names)


def _unexpected(matched: _Matching) -> Iterator[Violation]:
    for record in matched.unexpected:
        name = shown(record.data)
        text = f"{name} in {record.topic} is not what `expect` returns for any input"
        yield Violation("UNEXPECTED", text, (name,))


def _torn(account: Account, matched: _Matching) -> Iterator[Violation]:
    """Outputs whose input is not acknowledged. The reverse is reported as a loss."""
    for (topic, subscription), left in account.left.items():
        for record in account.inputs.get(topic, ()):
            if record.position not in left:
                continue
            made = [rule.topic for rule in account.rules if matched.count(rule.topic, record.data)]
            lacks = any(matched.missing(rule.topic, record.data) for rule in account.rules)
            if made and not lacks:
                text = (
                    f"{_list(made)} has what {shown(record.data)} makes, but {subscription} has "
                    f"not acknowledged it {account.rested_s:.0f} s after the faults: it is "
                    "redelivered"
                )
                yield Violation("TORN ACKNOWLEDGEMENT", text, (shown(record.data),))


def _transactions_in_part(account: Account) -> Iterator[Violation]:
    visible = {
        (record.partition, record.position)
        for records in account.outputs.values()
        for record in records
    }
    judged = {name for name, _ in visible}
    for txn in account.transactions:
        stored = [each for each in txn.stored if each[0] in judged]
        shows = [name for topic, place, name in stored if (topic, place) in visible]
        hidden = [name for topic, place, name in stored if (topic, place) not in visible]
        if hidden and (shows or txn.committed):
            seen = f"{_list(shows)} of it is" if shows else "nothing of it is"
            text = f"transaction {txn.name}: {seen} visible, {_list(hidden)} is not"
            yield Violation("PARTIAL", text, (txn.name, *shows, *hidden))
        elif shows and txn.committed is False:
            text = f"transaction {txn.name} was aborted, but {_list(shows)} is visible"
            yield Violation("PARTIAL", text, (txn.name, *shows))


def _disordered(account: Account, matched: _Matching) -> Iterator[Violation]:
    for rule in account.rules:
        if not rule.ordered:
            continue
        for records in account.inputs.values():
            yield from _disordered_in(rule.topic, records, matched)


def _disordered_in(
    topic: str, records: Sequence[Record], matched: _Matching
) -> Iterator[Violation]:
    """By key, the first outputs of the inputs that are out of order. Partitions are independent."""
    last: dict[tuple[str, str, str], tuple[int, bytes]] = {}
    seen: set[bytes] = set()
    for record in records:
        if record.data in seen or not record.key or not matched.found[topic][record.data]:
            continue
        seen.add(record.data)
        place, first = matched.found[topic][record.data][0]
        same = (record.key, record.partition, first.partition)
        before = last.get(same)
        if before is not None and place < before[0]:
            earlier, later = shown(before[1]), shown(record.data)
            text = f"{later} follows {earlier} of key {record.key}, but is before it in {topic}"
            yield Violation("ORDER", text, (earlier, later))
        else:
            last[same] = place, record.data


def _list(names: Iterable[str]) -> str:
    *most, last = list(names)
    return f"{', '.join(most)} and {last}" if most else last
