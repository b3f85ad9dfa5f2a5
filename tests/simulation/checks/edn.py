"""A seed's history in EDN, as outside checkers of transactions read it: Elle's `list-append`.

Each topic, or partition, is a list: a message appends to it, and what it holds in the end is one
read. A transaction is one operation, and so is a message without one. Topics in log order show open
transactions interleaved, which read-committed permits; check topics in commit order for more.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from checks.history import History, Logs, Outcome, Sent, Turn, Txn

LAST: Final = 1 << 62  # the turn of what was not answered: after everything else


class _Operation(NamedTuple):
    asked: int
    answered: int
    kind: str  # of the answer: ok, fail, info (it may have happened)
    value: str


def elle_history(history: History, logs: Logs) -> Iterator[str]:
    """Lines of a file of operations."""
    topics = {read.value: topic for topic, log in logs.items() for read in log}
    operations = [_transaction(txn, topics) for txn in history.txns if txn.sent]
    alone = (sent for sent in history.sent.values() if sent.txn is None)
    operations += [_message(sent, topics) for sent in alone]
    values = [each.value for each in operations]
    # (turn, process, 0 or 1, kind): what was never answered ends before the final reads, each of
    # which is answered at once.
    events = [(each.asked, process, 0, "invoke") for process, each in enumerate(operations)]
    events += [(each.answered, process, 1, each.kind) for process, each in enumerate(operations)]
    for topic, log in sorted(logs.items()):
        process = len(values)
        values.append(_vector([f"[:r {_text(topic)} {_vector(_text(r.value) for r in log)}]"]))
        events += [(LAST, process, 0, "invoke"), (LAST, process, 1, "ok")]
    for index, (_, process, _, kind) in enumerate(sorted(events)):
        operation = f":process {process}, :f :txn, :value {values[process]}"
        yield f"{{:index {index}, :time {index}, :type :{kind}, {operation}}}"


def _transaction(txn: Txn, topics: dict[str, str]) -> _Operation:
    kind, answered = "info", None
    if txn.committed:
        kind, answered = "ok", txn.commit_heard
    elif txn.surely_aborted:
        kind, answered = "fail", txn.abort_heard
    value = _vector(_append(sent, topics) for sent in txn.sent)
    return _Operation(_or(txn.began, 0), _or(answered, LAST), kind, value)


def _message(sent: Sent, topics: dict[str, str]) -> _Operation:
    kind = {Outcome.DONE: "ok", Outcome.REFUSED: "fail"}.get(sent.outcome, "info")
    value = _vector([_append(sent, topics)])
    return _Operation(_or(sent.asked, 0), _or(sent.answered, LAST), kind, value)


def _append(sent: Sent, topics: dict[str, str]) -> str:
    return f"[:append {_text(topics.get(sent.value, sent.topic))} {_text(sent.value)}]"


def _or(turn: Turn, otherwise: int) -> int:
    return otherwise if turn is None else turn


def _vector(items: Iterator[str] | list[str]) -> str:
    return f"[{' '.join(items)}]"


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
