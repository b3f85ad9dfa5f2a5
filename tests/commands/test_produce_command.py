"""`pybroker produce`: its arguments, and the messages on the topic afterwards."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from message_words import RECORD, command, contents, stored

from pybroker.client import Client, InitialPosition, MessageId, SchemaType, TopicSchema
from pybroker.commands.messages.schemas import Decoder
from pybroker.process.cli import main
from pybroker.testing import RunningBroker

Run = Callable[..., tuple[int, str, str]]


# -- produce


def test_messages_are_split_at_commas_and_may_be_said_again(
    run: Run, client: Client, topic: str
) -> None:
    code, out, err = run("produce", topic, "-m", "a,b", "--messages", "c d", "-n", "2")
    assert (code, out, err) == (0, "", "6 messages successfully produced\n")
    assert stored(client, topic) == [b"a", b"b", b"c d"] * 2


@pytest.mark.parametrize(
    ("separator", "text", "expected"),
    [("|", "a,b|c", [b"a,b", b"c"]), ("", "a,b", [b"a,b"]), (",", "a,,b,,", [b"a", b"", b"b"])],
)
def test_the_separator_is_a_text(
    run: Run, client: Client, topic: str, separator: str, text: str, expected: list[bytes]
) -> None:
    run("produce", topic, "-s", separator, "-m", text)
    assert stored(client, topic) == expected


def test_bytes_that_are_no_text_travel_as_they_were_typed(
    run: Run, client: Client, topic: str
) -> None:
    assert run("produce", topic, "-m", os.fsdecode(b"\xff,\xfe"))[0] == 0
    assert stored(client, topic) == [b"\xff", b"\xfe"]


def test_a_file_is_a_message(run: Run, client: Client, topic: str, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_bytes(path.name.encode() + b"\0,\n")
    run("produce", topic, "-f", ",".join(map(str, paths)), "-db")
    assert stored(client, topic) == [b"a\0,\n", b"b\0,\n"]


def test_a_file_that_is_missing_stops_before_anything_is_sent(
    run: Run, client: Client, topic: str
) -> None:
    code, _, err = run("produce", topic, "-m", "a", "-f", "/nowhere/at/all")
    assert code == 1
    assert "pybroker produce: " in err
    assert "/nowhere/at/all" in err
    assert stored(client, topic) == []


def test_lines_of_stdin_are_messages(
    run: Run, client: Client, topic: str, typed: Callable[[str], None]
) -> None:
    typed("a,b\n\nlast")
    assert run("produce", topic, "--stdin")[0] == 0
    assert stored(client, topic) == [b"a,b", b"", b"last"]


def test_lines_leave_before_stdin_ends(broker: RunningBroker, client: Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    with command(broker, "produce", topic, "--stdin", stdin=subprocess.PIPE) as producing:
        assert producing.stdin is not None
        for line in (b"first", b"second"):
            producing.stdin.write(line + b"\n")
            producing.stdin.flush()
            assert consumer.receive(20_000).data() == line
        producing.stdin.close()
        assert producing.wait(60) == 0


def test_key_and_properties_are_of_each_message(run: Run, client: Client, topic: str) -> None:
    run("produce", topic, "-m", "a,b", "-k", "k", "-p", "x=1,y=2=3", "-p", "z=")
    reader = client.create_reader(topic, MessageId.earliest)
    for _ in range(2):
        message = reader.read_next(20_000)
        assert message.partition_key() == "k"
        assert message.properties() == {"x": "1", "y": "2=3", "z": ""}


def test_what_is_not_to_be_replicated_says_so_message_by_message(
    run: Run, client: Client, topic: str
) -> None:
    run("produce", topic, "-m", "a,b", "-dr")
    reader = client.create_reader(topic, MessageId.earliest)
    found = [reader.read_next(20_000) for _ in range(2)]
    assert [list(each.entry.metadata.replicate_to) for each in found] == [["__local__"]] * 2
    assert [each.message_id().batch_index() for each in found] == [-1, -1]


def test_what_is_too_large_travels_in_chunks(
    run: Run, client: Client, topic: str, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    large.write_bytes(os.urandom(6_000_000))
    assert run("produce", topic, "-f", str(large))[0] == 1
    assert run("produce", topic, "-f", str(large), "-c")[0] == 0
    assert (
        client.create_reader(topic, MessageId.earliest).read_next(20_000).data()
        == large.read_bytes()
    )


def test_a_rate_is_kept(run: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr("pybroker.commands.messages.values.time.monotonic", lambda: now_s)
    monkeypatch.setattr("pybroker.commands.messages.values.time.sleep", sleep)
    run("produce", topic, "-m", "a", "-n", "11", "-r", "5")
    assert now_s == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "supply message content"),
        (["-m", "a", "--stdin"], "--stdin cannot be combined"),
        (["-m", "a", "-p", "x"], "'x' is not key=value"),
        (["-m", "a", "-ekn", "k"], "must be given together"),
        (["-m", "a", "-ekn", "k", "-ekv", "file:///nowhere"], "/nowhere cannot be read"),
        (["-m", "a", "-vs", "int"], "not bytes, string"),
        (["-m", "a", "-vs", "avro:{"], "not an Avro schema"),
        (["-m", "a", "-vs", 'avro:"int"'], "must be JSON"),
        (["-m", '"1"', "-vs", 'avro:"int"'], "'1' is not of type int"),
        (["-m", "a", "-kvet", "inline"], "needs --key-value-key"),
    ],
)
def test_what_cannot_be_sent_is_told(run: Run, topic: str, words: list[str], said: str) -> None:
    code, _, err = run("produce", topic, *words)
    assert (code, said in err) == (1, True), err


@pytest.mark.parametrize(
    "words",
    [["-n", "0"], ["-r", "-1"], ["-r", "nan"], ["--mess", "a"], ["-kvet", "beside"], ["--odd"]],
)
def test_options_that_are_none_are_usage_errors(run: Run, topic: str, words: list[str]) -> None:
    code, _, err = run("produce", topic, "-m", "a", *words)
    assert (code, err.startswith("usage: pybroker")) == (2, True)


def test_a_broker_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--url", "pulsar://localhost:1", "--timeout", "0.2"]
    assert main(["produce", "t", "-m", "a", *words]) == 1
    assert "Cannot connect to pulsar://localhost:1" in capsys.readouterr().err


# -- schemas


@pytest.mark.parametrize(
    ("schema", "typed_in", "travels"),
    [
        ("string", "héllo", "héllo".encode()),
        (f"json:{RECORD}", '{"a": 1}', b'{"a": 1}'),
        (f"avro:{RECORD}", '{"a": 1}', b"\x02"),
    ],
)
def test_values_go_and_come_by_their_schema(
    run: Run, client: Client, topic: str, schema: str, typed_in: str, travels: bytes
) -> None:
    assert run("produce", topic, "-s", "", "-m", typed_in, "-vs", schema)[0] == 0
    assert stored(client, topic) == [travels]
    words = ["-s", "s", "-p", "Earliest", "-st", "auto_consume"]
    assert contents(run("consume", topic, *words)[1]) == [typed_in]


@pytest.mark.parametrize(
    ("encoding", "travels"),
    [("inline", b"\0\0\0\x02kk\0\0\0\x01\x02"), ("separated", b"\x02")],
)
def test_a_key_goes_with_its_value(
    run: Run, client: Client, topic: str, encoding: str, travels: bytes
) -> None:
    words = ["-kvet", encoding, "-kvk", "kk", "-vs", f"avro:{RECORD}", "-s", "", "-m", '{"a": 1}']
    assert run("produce", topic, *words)[0] == 0
    assert stored(client, topic) == [travels]
    out = run("read", topic, "-m", "earliest", "-st", "auto_consume")[1]
    assert contents(out) == ['{"key": "kk", "value": {"a": 1}}']
    assert ("key:[a2s=]" in out) is (encoding == "separated")


def test_a_value_that_is_not_as_its_schema_says_is_shown_as_it_is(
    run: Run, client: Client, topic: str
) -> None:
    run("produce", topic, "-s", "", "-m", '{"a": 1}', "-vs", f"avro:{RECORD}")
    client.create_producer(topic).send(b"\xff\xff odd")
    out = run("read", topic, "-m", "earliest", "-n", "2", "-st", "auto_consume")[1]
    assert contents(out) == ['{"a": 1}', "\ufffd\ufffd odd"]


@pytest.mark.parametrize("sent", ['{"a": "\\ud800"}', "[" * 100_000], ids=["surrogate", "deep"])
def test_json_that_is_no_text_is_shown_as_it_is_and_acknowledged(
    run: Run, broker: RunningBroker, client: Client, topic: str, sent: str
) -> None:
    schema = TopicSchema(SchemaType.JSON, RECORD, "client")
    client.create_producer(topic, schema=schema).send(sent.encode())
    words = ["-s", "s", "-p", "Earliest", "-st", "auto_consume"]
    assert contents(run("consume", topic, *words)[1]) == [sent]
    broker.wait_until(lambda: broker.backlog(topic, "s") == 0)


@pytest.mark.parametrize("version", [b"x", b"x" * 3000, b"\0" * 7 + b"\x63"])
def test_a_version_that_no_schema_has_is_no_schema(
    run: Run, client: Client, topic: str, version: bytes
) -> None:
    run("produce", topic, "-m", "1", "-vs", "string")
    assert Decoder(client).text(topic, version, b"1", "") is None


# -- encryption


def test_messages_are_encrypted_and_decrypted(
    run: Run, broker: RunningBroker, client: Client, topic: str, tmp_path: Path
) -> None:
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    pem = serialization.Encoding.PEM
    public, private = tmp_path / "public.pem", tmp_path / "private.pem"
    public.write_bytes(
        key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    private.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    words = ["-ekn", "k", "-ekv", f"file://{public}"]
    assert run("produce", topic, "-m", "secret", *words)[0] == 0
    shut = run("read", topic, "-m", "earliest", "-ca", "CONSUME")[1]
    assert "secret" not in shut
    code, peeked, err = run("peek", topic, "-s", "s", "--admin-url", broker.admin_url)
    assert (code, "content:" in peeked, "secret" in peeked) == (0, True, False), err
    opened = run("read", topic, "-m", "earliest", "-ekv", str(private))[1]
    assert contents(opened) == ["secret"]


# -- in transactions


def test_produced_in_one_transaction_all_is_there_or_nothing(
    run: Run, client: Client, topic: str, typed: Callable[[str], None]
) -> None:
    typed("a\nb\n")
    assert run("produce", topic, "--stdin", "--txn")[::2] == (
        0,
        "2 messages successfully produced\n",
    )
    assert stored(client, topic) == [b"a", b"b"]
    typed("{\n")
    code, _, err = run("produce", f"{topic}-2", "--stdin", "--txn", "-vs", f"json:{RECORD}")
    assert (code, err.splitlines()[0]) == (1, "0 messages successfully produced")
    typed('{"a": 1}\n{\n')
    code, _, err = run("produce", f"{topic}-2", "--stdin", "--txn", "-vs", f"json:{RECORD}")
    assert (code, err.splitlines()[0]) == (1, "0 messages successfully produced")
    assert stored(client, f"{topic}-2") == []


def test_transactions_may_be_of_a_size(
    run: Run, client: Client, topic: str, typed: Callable[[str], None]
) -> None:
    typed('{"a": 1}\n{"a": 2}\n{"a": 3}\n{\n')
    words = ["--stdin", "--txn-size", "2", "-vs", f"json:{RECORD}"]
    code, _, err = run("produce", topic, *words)
    assert (code, err.splitlines()[0]) == (1, "2 messages successfully produced")
    assert stored(client, topic) == [b'{"a": 1}', b'{"a": 2}']
