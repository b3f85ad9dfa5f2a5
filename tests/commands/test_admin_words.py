"""From the words after `pybroker admin` to a request, and from an answer to the screen."""

import argparse
import subprocess
from typing import Any

import pytest

from pybroker.broker.policies.policy import Level
from pybroker.broker.policies.table import BY_NAME
from pybroker.commands.admin.command import filled, topic_parts
from pybroker.commands.admin.completion import script
from pybroker.commands.admin.grammar import add_arguments, option_names
from pybroker.commands.admin.main import GROUPS, group_parser, main
from pybroker.commands.admin.output import shown
from pybroker.commands.admin.rest import Rest
from pybroker.commands.admin.tables import summaries
from pybroker.commands.admin.tables.policies import OF_NAMESPACES, OF_TOPICS, At
from pybroker.commands.admin.tables.summaries import summary
from pybroker.commands.admin.values import message_id, size_bytes, time_s


def parsed(grammar: str, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_arguments(parser, grammar)
    return parser.parse_args(words)


class Recorded(Rest):
    """Records requests; each answer is empty."""

    def __init__(self) -> None:
        super().__init__("http://nowhere")
        self.asked: list[tuple[Any, ...]] = []

    def ask(self, verb: str, path: str, body: Any = None, query: Any = None) -> Any:
        self.asked.append((verb, path, body, query))
        return []


def asked(*words: str) -> tuple[Any, ...]:
    group, *rest = words
    options = group_parser(group).parse_args(rest)
    recorded = Recorded()
    options.command_of_group.execute(recorded, options)
    (one,) = recorded.asked
    return one


def test_arguments_are_read_from_one_line_of_text() -> None:
    grammar = "<topic> -s|--sub String [-n|--count int] [--force|-f] [-p|--props Map] [-l List]"
    options = parsed(
        grammar, "t", "-s", "a", "--count", "3", "-p", "a=b=c,d=", "-l", "x,y", "-l", "z"
    )
    assert (options.topic, options.sub, options.count, options.force) == ("t", "a", 3, False)
    assert (options.props, options.l) == ([("a", "b=c"), ("d", "")], ["x", "y", "z"])
    assert option_names(grammar) == [
        "-s",
        "--sub",
        "-n",
        "--count",
        "--force",
        "-f",
        "-p",
        "--props",
        "-l",
    ]


@pytest.mark.parametrize("words", [["t"], ["t", "-s", "a", "-n", "x"], ["t", "-s", "a", "--for"]])
def test_what_is_wrong_in_the_words_is_told(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("<topic> -s|--sub String [-n|--count int] [--force|-f]", *words)


def test_times_and_sizes_have_units() -> None:
    assert [time_s(text) for text in ("30", "5m", "3h", "2d", "-1")] == [
        30,
        300,
        10_800,
        172_800,
        -1,
    ]
    assert [size_bytes(text) for text in ("7", "10K", "10M", "1g")] == [
        7,
        10_240,
        10 * 1024**2,
        1024**3,
    ]
    for odd in ("", "5x", "1.5h", "9" * 20, "h"):
        with pytest.raises(argparse.ArgumentTypeError):
            time_s(odd)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["reset-cursor", "-s", "s", "-m", "3:4", "-e"], "resetcursor"),
        (["expire-messages", "-s", "s", "-p", "3:4", "-e"], "expireMessages"),
    ],
)
def test_a_position_is_excluded_in_apache_pulsars_word(words: list[str], what: str) -> None:
    """Its broker ignores any other name of the field."""
    verb, path, body, _ = asked("topics", words[0], "t", *words[1:])
    assert (verb, path.rsplit("/", 1)[1]) == ("POST", what)
    assert body == {"ledgerId": 3, "entryId": 4, "excluded": True}


def test_a_message_id_is_two_numbers() -> None:
    assert message_id("3:-1") == {"ledgerId": 3, "entryId": -1}
    assert message_id("3:4:5") == {"ledgerId": 3, "entryId": 4}
    for odd in ("", "3", "a:b", "1:2:", "9" * 30 + ":1"):
        with pytest.raises(ValueError, match="ledger:entry"):
            message_id(odd)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("orders", "persistent/public/default/orders"),
        ("acme/shop/orders", "persistent/acme/shop/orders"),
        ("non-persistent://acme/shop/a/b ?", "non-persistent/acme/shop/a%2Fb%20%3F"),
    ],
)
def test_a_topics_name_is_one_segment_of_the_path(name: str, path: str) -> None:
    assert "/".join(topic_parts(name)) == path


@pytest.mark.parametrize("name", ["", "a/b", "persistent://a//x", "a//b", "a/b/..", "a/./c", ".."])
def test_what_is_no_topic_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        topic_parts(name)


def test_values_cannot_reach_beyond_their_segment() -> None:
    options = argparse.Namespace(namespaceName="acme/shop", role="../../x?y")
    path = filled("namespaces/{namespace}/permissions/{role}", options)
    assert path == "namespaces/acme/shop/permissions/..%2F..%2Fx%3Fy"
    with pytest.raises(ValueError, match="is not a namespace"):
        filled("{namespace}", argparse.Namespace(namespaceName="a/b/c"))


def test_retention_is_said_with_units_and_sent_in_minutes_and_megabytes() -> None:
    words = ("namespaces", "set-retention", "a/b", "--time", "3h", "--size", "2G")
    body = {"retentionTimeInMinutes": 180, "retentionSizeInMB": 2048}
    assert asked(*words) == ("POST", "namespaces/a/b/retention", body, {})


def test_what_was_not_said_is_not_sent() -> None:
    verb, path, body, query = asked("topics", "unsubscribe", "t", "-s", "a b")
    assert (verb, path) == ("DELETE", "persistent/public/default/t/subscription/a%20b")
    assert (body, query) == (None, {"force": "false"})


def test_a_policy_of_a_topic_may_be_asked_for_as_it_holds() -> None:
    *_, query = asked("topicPolicies", "get-retention", "t", "--applied", "--global")
    assert query == {"applied": "true", "isGlobal": "true"}


def test_enable_and_disable_are_never_both() -> None:
    for words in ([], ["--enable", "--disable"]):
        with pytest.raises(ValueError, match="--enable or --disable"):
            asked("namespaces", "set-deduplication", "a/b", *words)


@pytest.mark.parametrize(
    ("at", "level"),
    [
        *((at, "namespace") for at in OF_NAMESPACES),
        *((at, "topic") for at in OF_TOPICS),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_policys_row_is_of_a_policy_that_has_that_level(at: At, level: str) -> None:
    found: Level | None = getattr(BY_NAME[at.policy], level)
    assert found is not None
    assert found.by_query == bool(at.by_query)


def test_what_cannot_be_taken_back_has_no_command_for_it() -> None:
    names = {command.name for command in GROUPS["namespaces"]}
    assert "set-encryption-required" in names and "remove-encryption-required" not in names
    assert "remove-retention" in names


def test_answers_are_json_or_a_table() -> None:
    assert shown(None, False) == ""
    assert shown("ok\n", True) == "ok"
    assert shown({"a": [1]}, False) == '{\n  "a": [\n    1\n  ]\n}'
    assert shown({"name": "x", "n": {"deep": 1}}, True) == "name    x\nn.deep  1"
    assert shown([{"a": 1}, {"b": None}], True) == "a  b\n1  -\n-  -"
    assert shown(["x", "y"], True) == "x\ny"
    assert (shown([], True), shown(7, True)) == ("", "7")


def test_an_unreachable_broker_is_reported_in_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--admin-url", "http://127.0.0.1:1", "brokers", "version"]) == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert main(["nonsense"]) == 2
    assert "topics" in capsys.readouterr().err


def test_names_of_commands_are_given_once() -> None:
    for group, commands in GROUPS.items():
        names = [command.name for command in commands]
        assert len(names) == len(set(names)), group


def test_the_shell_completes_groups_commands_and_options() -> None:
    text = script("bash", GROUPS)

    def completed(*words: str) -> list[str]:
        line = f"COMP_WORDS=(pybroker admin {' '.join(words)}); COMP_CWORD={len(words) + 1}"
        told = f'{text}\n{line}\n_pybroker_admin\necho "${{COMPREPLY[*]}}"'
        done = subprocess.run(["bash", "-c", told], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed("ten") == ["tenants"]
    assert "create" in completed("tenants", "''")
    assert completed("topics", "skip", "--c") == ["--count"]
    assert "bashcompinit" in script("zsh", GROUPS)


@pytest.mark.parametrize(
    ("said", "position"), [("earliest", (-1, -1)), ("latest", (2**63 - 1, 2**63 - 1))]
)
def test_a_cursor_is_reset_to_either_end(said: str, position: tuple[int, int]) -> None:
    _, path, body, _ = asked("topics", "reset-cursor", "t", "-s", "s", "-m", said)
    assert path.endswith("/t/subscription/s/resetcursor")
    assert (body["ledgerId"], body["entryId"]) == position


def test_every_command_has_a_line_of_help_of_its_own() -> None:
    for group, commands in GROUPS.items():
        lines = {command.name: summary(group, command.name) for command in commands}
        assert all(lines.values()) and max(map(len, lines.values())) < 90
        help_text = " ".join(group_parser(group).format_help().split())
        for line in lines.values():
            assert line in help_text


def test_no_line_of_help_is_left_over() -> None:
    there = {f"{group} {row.name}" for group, rows in GROUPS.items() for row in rows}
    assert set(summaries._OF_GROUPS) <= there
    others = {name.partition(" ")[2] for name in there - set(summaries._OF_GROUPS)}
    assert set(summaries._OF_NAMES) <= others


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://localhost:abc", "is not a"),
        ("localhost:8080", "http://host:port"),
        ("pulsar://localhost:6650", "http://host:port"),
        ("http://no-such-host.invalid:8080", "check the host name"),
        ("http://127.0.0.1:1", "check that the broker runs"),
    ],
)
def test_what_is_wrong_with_the_address_is_what_is_said(
    url: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--admin-url", url, "tenants", "list"]) == 1
    said = capsys.readouterr().err
    assert says in said
    others = {"check the host name", "check that the broker runs"} - {says}
    assert not any(other in said for other in others)


def test_a_table_has_a_row_for_each_and_a_column_for_each_field() -> None:
    stats = {"s": {"backlog": 3, "rate": {"in": 1.5}}, "audit": {"backlog": 0, "by": ["a", "b"]}}
    assert shown(stats, True).splitlines() == [
        "name   backlog  rate.in  by",
        "s      3        1.5      -",
        "audit  0        -        a, b",
    ]
    assert shown({"a": {"b": {"c": 1}}, "d": {}, "e": "x\ny"}, True).splitlines() == [
        "a.b.c  1",
        "d      -",
        "e      x\\ny",
    ]


def test_a_java_class_is_told_where_to_go(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["schemas", "extract", "t", "-j", "a.jar", "-t", "avro", "-c", "com.acme.Order"]
    assert main(words) == 1
    assert "schemas upload" in capsys.readouterr().err


class OfSource(Recorded):
    """Knows one topic with 3 partitions, and the properties of its shadow."""

    def ask(self, verb: str, path: str, body: Any = None, query: Any = None) -> Any:
        super().ask(verb, path, body, query)
        return {"partitions": 3} if path.endswith("/partitions") else {"PULSAR.SHADOW_SOURCE": "w"}


def test_a_shadow_topic_has_its_sources_partitions_and_names_it() -> None:
    words = ["create-shadow-topic", "s", "--source", "w", "-p", "a=b"]
    options, rest = group_parser("topics").parse_args(words), OfSource()
    options.command_of_group.execute(rest, options)
    verb, path, body, _ = rest.asked[-1]
    assert (verb, path) == ("PUT", "persistent/public/default/s/partitions")
    assert body == {"partitions": 3, "properties": {"a": "b", "PULSAR.SHADOW_SOURCE": "w"}}
    options = group_parser("topics").parse_args(["get-shadow-source", "s"])
    assert options.command_of_group.execute(rest, options) == "w"
