"""A mistyped option or command gets a suggestion, and the usage of the command that was typed."""

import json

import pytest

from pybroker.process.cli import main
from pybroker.testing import RunningBroker


def refused(capsys: pytest.CaptureFixture[str], line: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("produce t --mesages a", "--messages"),
        ("client produce t --seperator=;", "--separator"),
        ("consume t -s s -p earliest", "Earliest"),
        ("prodce t", "produce"),
        ("standalone --dat-dir x", "--data-dir"),
        ("demo --order 3", "--orders"),
        ("tokens creat", "create"),
        ("transactions block", "blocking"),
        ("admin topics internal-info t", "info-internal"),
        ("admin topics stats t --get-precise-backlg", "--get-precise-backlog"),
    ],
)
def test_what_was_probably_meant_is_suggested(
    line: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"did you mean {meant}" in refused(capsys, line)


def test_a_mistyped_group_is_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admin", "topcs", "list"]) == 2
    assert "did you mean topics?" in capsys.readouterr().err


def test_a_word_like_no_other_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("produce t --xyzzy", "admin topics xyzzy", "consume t -s s -x"):
        assert "did you mean" not in refused(capsys, line)


def test_the_usage_is_that_of_the_typed_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "produce t --xyzzy").startswith("usage: pybroker produce ")
    assert refused(capsys, "admin topics stats t --xyzzy").startswith(
        "usage: pybroker admin topics stats "
    )


def test_general_options_of_admin_may_stand_anywhere(
    broker: RunningBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ["--admin-url", broker.admin_url]
    table = ["--format", "table"]
    tenants = ["tenants", "list"]
    for words in ([*url, *table, *tenants], [*table, *tenants, *url], [*tenants, *url, *table]):
        assert main(["admin", *words]) == 0
        assert capsys.readouterr().out == "public\npulsar\n"
    assert main(["admin", *url, *tenants]) == 0
    assert json.loads(capsys.readouterr().out) == ["public", "pulsar"]


def test_a_commands_own_option_wins_over_a_general_one(
    broker: RunningBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["clusters", "update", "standalone", "--url", "http://localhost:7"]
    main(["admin", "--admin-url", broker.admin_url, *words])
    assert "http://localhost:7 cannot be reached" not in capsys.readouterr().err
