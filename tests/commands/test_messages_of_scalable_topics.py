"""`pybroker produce`, `consume` and `read` on scalable topics, whose segments are split."""

from collections.abc import Callable

import httpx
import pytest
from message_words import contents

from pybroker.testing import RunningBroker

Run = Callable[..., tuple[int, str, str]]
Split = Callable[[], None]


@pytest.fixture
def name(topic: str) -> str:
    return f"topic://public/default/{topic}"


@pytest.fixture
def split(broker: RunningBroker, topic: str) -> Split:
    """Splits the first segment."""
    url = f"{broker.admin_url}/admin/v2/scalable/public/default/{topic}"
    return lambda: httpx.post(f"{url}/split/0").raise_for_status() and None


@pytest.mark.parametrize("kind", ["Shared", "Exclusive", "Failover"])
def test_what_is_shown_is_acknowledged_on_all_segments(
    run: Run, name: str, split: Split, kind: str
) -> None:
    words = ["-s", "s", "-t", kind, "-p", "Earliest"]
    assert run("produce", name, "-m", "a,b")[0] == 0
    split()
    assert run("produce", name, "-m", "c,d", "-k", "k")[0] == 0
    first = contents(run("consume", name, *words, "-n", "3")[1])
    rest = contents(run("consume", name, *words)[1])
    assert sorted(first + rest) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_transactions_produce_and_consume(run: Run, name: str, kind: str) -> None:
    assert run("produce", name, "-m", "a,b,c,d", "--txn")[0] == 0
    words = ["-s", "s", "-p", "Earliest", "-t", kind]
    assert contents(run("consume", name, *words, "-n", "3", "--txn-size", "2")[1]) == [*"abc"]
    assert contents(run("consume", name, *words)[1]) == ["d"]


def test_it_is_read_without_a_subscription(run: Run, name: str, split: Split) -> None:
    run("produce", name, "-m", "a")
    split()
    run("produce", name, "-m", "b")
    assert contents(run("read", name, "-m", "earliest", "-n", "2")[1]) == ["a", "b"]


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["consume", "-s", "s", "-t", "Key_Shared"], "consumers share the keys"),
        (["consume", "-s", "s", "-m", "NonDurable"], "pybroker read"),
        (["consume", "-s", "s", "--regex"], "is not a pattern"),
        (["read", "-m", "1:2"], "read from -m earliest"),
        (["read", "-rc"], "not compacted"),
    ],
)
def test_options_that_a_scalable_topic_does_not_have_are_refused(
    run: Run, name: str, words: list[str], advice: str
) -> None:
    code, _, err = run(words[0], name, *words[1:])
    assert code != 0 and advice in err
