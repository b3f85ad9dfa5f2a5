"""`pybroker consume`, `read` and `peek`: their output, and what they acknowledge."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from message_words import contents

from pybroker.client import Client, InitialPosition, MessageId
from pybroker.commands.admin.rest import Answer
from pybroker.commands.messages import consume
from pybroker.commands.messages.main import parser
from pybroker.commands.messages.peek import messages_of
from pybroker.testing import RunningBroker

Run = Callable[..., tuple[int, str, str]]


# -- consume


def test_what_is_shown_is_acknowledged(
    run: Run, broker: RunningBroker, client: Client, topic: str
) -> None:
    run("produce", topic, "-m", "a,b,c", "-k", "k", "-p", "x=1,y=2")
    code, out, err = run("consume", topic, "-s", "s", "-n", "2", "-p", "Earliest")
    assert (code, err) == (0, "2 messages successfully consumed\n")
    time = r"publishTime:\[\d{13}\], eventTime:\[0\], "
    line = time + r"key:\[k\], properties:\[x=1, y=2\], content:"
    boundary = "----- got message -----\n"
    assert re.fullmatch(f"{boundary}{line}a\n{boundary}{line}b\n", out)
    assert contents(run("consume", topic, "-s", "s")[1]) == ["c"]
    broker.wait_until(lambda: broker.backlog(topic, "s") == 0)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "Key_Shared"])
def test_subscriptions_are_of_four_types(run: Run, topic: str, kind: str) -> None:
    run("produce", topic, "-m", "a")
    words = ["-s", "s", "-t", kind, "-p", "Earliest", "-q", "5", "-pm", "false", "-ac", "-mc", "2"]
    assert contents(run("consume", topic, *words)[1]) == ["a"]


def test_a_subscription_that_is_not_durable_is_gone_afterwards(
    run: Run, broker: RunningBroker, topic: str
) -> None:
    run("produce", topic, "-m", "a,b")
    words = ["-s", "s", "-m", "NonDurable", "-p", "Earliest"]
    assert contents(run("consume", topic, *words)[1]) == ["a"]
    broker.kill_and_restart()
    path = f"persistent/public/default/{topic}"
    assert httpx.get(f"{broker.admin_url}/admin/v2/{path}/subscriptions").json() == []


def test_times_say_where_to_begin_and_where_to_end(run: Run, client: Client, topic: str) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(bytes([97 + i])) for i in range(3)]
    reader = client.create_reader(topic, MessageId.earliest)
    times = [reader.read_next(20_000).publish_timestamp() for _ in ids]
    words = ["-s", "s", "-stp", str(times[0]), "-etp", str(times[2]), "-n", "3"]
    assert contents(run("consume", topic, *words)[1]) == ["a", "b", "c"]
    run("produce", topic, "-m", "late")
    words = ["-s", "s2", "-stp", "1", "-etp", str(times[2]), "-n", "0"]
    assert contents(run("consume", topic, *words)[1]) == ["a", "b", "c"]


def test_a_pattern_consumes_what_matches(run: Run, topic: str) -> None:
    for name in ("one", "two", "other"):
        run("produce", f"{topic}-{name}", "-m", name)
    words = [f"{topic}-(one|two)", "--regex", "-s", "s", "-n", "2", "-p", "Earliest"]
    assert sorted(contents(run("consume", *words)[1])) == ["one", "two"]


def test_a_pattern_finds_topics_that_come_later(
    run: Run, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybroker.commands.messages.consume._LOOK_AGAIN_S", 0)
    run("produce", f"{topic}-1", "-m", "a")
    from pybroker.commands.messages.shown import Look

    shown = Look.lines

    def lines(look: Look, *arguments: Any) -> Any:
        client.create_producer(f"{topic}-2").send(b"b")
        return shown(look, *arguments)

    monkeypatch.setattr(Look, "lines", lines)
    words = [f"{topic}-.", "--regex", "-s", "s", "-n", "2", "-p", "Earliest"]
    assert contents(run("consume", *words)[1]) == ["a", "b"]


class Busy:
    """A consumer that always has a message."""

    def __init__(self, topics: list[str]) -> None:
        self.topics = topics

    def receive(self, timeout_millis: int) -> list[str]:
        return self.topics


def test_a_busy_topic_of_a_pattern_does_not_hide_those_that_come_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consume, "_LOOK_AGAIN_S", 0)
    there = ["persistent://public/default/a-1"]
    client = SimpleNamespace(
        get_topics_of_namespace=lambda _: there, subscribe=lambda topics, *_, **__: Busy(topics)
    )
    options = parser().parse_args(["consume", "a-.", "--regex", "-s", "s", "-n", "300"])
    received = consume._Source(client, options).messages()  # type: ignore[arg-type]
    assert next(received)[1] == there
    there.append("persistent://public/default/a-2")
    assert {topic for _, topics in received for topic in topics} == set(there)


@pytest.mark.parametrize("pattern", ["a/b", "(", "non-persistent://public/default/a"])
def test_what_is_no_pattern_is_told(run: Run, pattern: str) -> None:
    code, _, err = run("consume", pattern, "--regex", "-s", "s")
    assert (code, "is no" in err) == (1, True)


def test_a_subscriptions_name_must_be_said(run: Run, topic: str) -> None:
    assert run("consume", topic)[0] == 2


# -- how messages are shown


def test_contents_in_hexadecimal_are_rows_of_sixteen(run: Run, topic: str) -> None:
    run("produce", topic, "-m", "abcdefghijklmnopqé")
    out = run("consume", topic, "-s", "s", "-p", "Earliest", "--hex")[1]
    assert contents(out) == [
        "00000000 61 62 63 64 65 66 67 68 69 6A 6B 6C 6D 6E 6F 70 abcdefghijklmnop"
    ]
    assert out.endswith("\n00000010 71 C3 A9                                        q..\n\n")


def test_hidden_contents_are_counted(run: Run, topic: str) -> None:
    run("produce", topic, "-m", "a", "-n", "2500")
    words = ["-s", "s", "-p", "Earliest", "-n", "2500", "--hide-content"]
    assert run("consume", topic, *words)[1] == "Received 1000 messages\nReceived 2000 messages\n"


def test_metadata_is_shown_too(run: Run, client: Client, topic: str) -> None:
    producer = client.create_producer(topic, producer_name="p")
    place = producer.send(b"a", event_timestamp=1_700_000_000_123, ordering_key="o", sequence_id=7)
    out = run("read", topic, "-m", "earliest", "-mp")[1]
    assert out.endswith(
        "content:a, event-time:2023-11-14T22:13:20.123Z, message-id:"
        f"{place.ledger_id()}:{place.entry_id()}:-1, producer-name:p, sequence-id:7, "
        "replicated-from:null, redelivery-count:0, ordering-key:o, schema-version:\n"
    )


def test_bytes_that_are_no_text_do_not_end_the_command(
    run: Run, client: Client, topic: str
) -> None:
    client.create_producer(topic).send(b"\xff\xfe", event_timestamp=2**63)
    code, out, _ = run("read", topic, "-m", "earliest", "-mp")
    assert (code, "content:\ufffd\ufffd, event-time:9223372036854775808," in out) == (0, True)


# -- read and peek


def test_a_reader_begins_behind_a_message_or_with_it(run: Run, client: Client, topic: str) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(body) for body in (b"a", b"b", b"c")]
    place = f"{ids[1].ledger_id()}:{ids[1].entry_id()}"
    assert contents(run("read", topic, "-m", place)[1]) == ["c"]
    assert contents(run("read", topic, "-m", place, "-i", "-n", "2")[1]) == ["b", "c"]
    assert contents(run("read", topic, "-m", "latest", "-i")[1]) == ["c"]


@pytest.mark.parametrize("place", ["", "1", "a:b", "1:2:3", "1:" + "9" * 30, "-5:1"])
def test_what_is_no_position_is_a_usage_error(run: Run, topic: str, place: str) -> None:
    assert run("read", topic, f"--start-message-id={place}")[0] == 2


def test_peeking_waits_for_nothing_and_takes_nothing(
    run: Run, broker: RunningBroker, client: Client, topic: str
) -> None:
    assert run("peek", topic)[:2] == (0, "")
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    run("produce", topic, "-m", "a,b,c", "-k", "k", "-p", "x=1")
    run("produce", topic, "-m", "d")
    run("consume", topic, "-s", "s")
    assert contents(run("peek", topic, "-n", "2")[1]) == ["a", "b"]
    assert contents(run("peek", topic, "-n", "0")[1]) == ["a", "b", "c", "d"]
    assert broker.backlog(topic, "s") > 0


def test_peeking_at_a_subscription_shows_what_waits_on_it(
    run: Run, broker: RunningBroker, client: Client, topic: str
) -> None:
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    admin = ["--admin-url", broker.admin_url]
    assert run("peek", topic, "-s", "s", *admin)[:2] == (0, "")
    run("produce", topic, "-m", "a,b", "-k", "k", "-p", "x=1")
    run("produce", topic, "-m", "c", "-db")
    run("consume", topic, "-s", "s", "-n", "2")
    code, out, _ = run("peek", topic, "-s", "s", "-n", "0", "-mp", *admin)
    assert (code, contents(out)[0].split(",")[0]) == (0, "c")
    client.create_producer(topic).send(b"d", partition_key="d", event_timestamp=1234)
    out = run("peek", topic, "-s", "s", "-n", "9", *admin)[1]
    assert contents(out) == ["c", "d"]
    assert "eventTime:[1234], key:[d]" in out
    assert broker.backlog(topic, "s") == 2


def test_a_batch_is_peeked_as_its_messages(
    run: Run, broker: RunningBroker, client: Client, topic: str
) -> None:
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    run("produce", topic, "-m", "a,b", "-k", "k", "-p", "x=1")
    out = run("peek", topic, "-s", "s", "-n", "0", "--admin-url", broker.admin_url)[1]
    assert contents(out) == ["a", "b"]
    assert out.count("key:[k], properties:[x=1]") == 2


def test_a_key_is_peeked_as_it_was_typed(
    run: Run, broker: RunningBroker, client: Client, topic: str
) -> None:
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    run("produce", topic, "-m", "a", "-k", "schlüssel Ņ 😀", "-p", "ä=ö", "-db")
    out = run("peek", topic, "-s", "s", "-mp", "--admin-url", broker.admin_url)[1]
    assert "key:[schlüssel Ņ 😀], properties:[ä=ö]" in out


@pytest.mark.parametrize(
    ("said", "data"),
    [
        ({"num-batch-message": "2147483647"}, b"\0\0\0\x0b\x18" + b"\xf1" + b"\xff" * 8 + b"\x01"),
        ({"num-batch-message": "2"}, b"torn"),
        ({"num-batch-message": "1", "Is-Encrypted": "true"}, b"\0\0\0\x02\x18\x01x"),
    ],
    ids=["standing still", "torn", "encrypted"],
)
def test_what_only_says_that_it_is_a_batch_is_peeked_as_one(
    said: dict[str, str], data: bytes
) -> None:
    headers = {f"X-Pulsar-{name}": text for name, text in {"Message-ID": "1:2", **said}.items()}
    (shown,) = messages_of(Answer(headers, data))
    assert (shown.message_id, shown.data) == ("1:2", data)


def test_headers_that_no_client_takes_are_an_error_in_words(
    run: Run, broker: RunningBroker, client: Client, topic: str
) -> None:
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"", {f"k{number}": "v" * 1000 for number in range(100)})
    code, _, err = run("peek", topic, "-s", "s", "--admin-url", broker.admin_url)
    assert (code, "sent an unreadable response: got more than" in err) == (1, True)


# -- acknowledged in transactions
def test_consumed_in_one_transaction_all_is_acknowledged_or_nothing(
    run: Run, broker: RunningBroker, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    for body in "abc":
        run("produce", topic, "-m", body)
    from pybroker.client import Transaction

    commit = Transaction.__exit__

    def interrupted(txn: Transaction, *_: object) -> None:
        commit(txn, KeyboardInterrupt, KeyboardInterrupt(), None)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "__exit__", interrupted)
        code, out, _ = run("consume", topic, "-s", "s", "-n", "2", "--txn")
    assert (code, contents(out)) == (130, ["a", "b"])
    assert broker.backlog(topic, "s") == 3
    code, out, _ = run("consume", topic, "-s", "s", "-n", "2", "--txn")
    assert (code, contents(out)) == (0, ["a", "b"])
    assert contents(run("consume", topic, "-s", "s")[1]) == ["c"]


def test_a_large_transaction_acknowledges_as_it_goes(
    run: Run, broker: RunningBroker, topic: str
) -> None:
    run("produce", topic, "-m", "a", "-n", "2500")
    words = ["-s", "s", "-t", "Shared", "-p", "Earliest", "-n", "2500", "--txn", "--hide-content"]
    assert run("consume", topic, *words)[0] == 0
    assert broker.backlog(topic, "s") == 0


def test_a_transaction_for_ever_is_refused(run: Run, topic: str) -> None:
    code, _, err = run("consume", topic, "-s", "s", "-n", "0", "--txn")
    assert (code, "never commit" in err) == (1, True)


def test_uncommitted_messages_are_shown_on_request(run: Run, client: Client, topic: str) -> None:
    txn = client.new_transaction()
    client.create_producer(topic).send(b"open", txn=txn)
    words = ["--isolation", "read_uncommitted"]
    assert contents(run("consume", topic, "-s", "s", "-p", "Earliest", *words)[1]) == ["open"]
    assert contents(run("read", topic, "-m", "earliest", *words)[1]) == ["open"]
    txn.abort()
    code, _, err = run("consume", topic, "-s", "s", "--isolation", "read_committed")
    assert (code, "is read_uncommitted, which was fixed" in err) == (1, True)
