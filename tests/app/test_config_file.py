"""A broker.conf is parsed completely, or refused with the wrong line."""

from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any

import pytest
from rows import check_each

from pybroker.base.configuration.apache_keys import APACHE_KEYS
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.configuration.config_file import (
    ConfigError,
    camel_case,
    environment_config,
    load_config,
    parse_config,
)


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "broker.conf")
    return str(caught.value)


def test_an_empty_file_gives_the_defaults() -> None:
    assert parse_config("", "broker.conf") == BrokerConfig()


def test_broker_conf_names_set_fields_of_each_type() -> None:
    config = parse_config(
        """
        # a comment
        clusterName=east
        maxMessageSize = 1024

        brokerDeduplicationEnabled=true
        managedLedgerDefaultMarkDeleteRateLimit=0.5
        """,
        "broker.conf",
    )
    assert config.cluster_name == "east"
    assert config.max_message_size == 1024
    assert config.broker_deduplication_enabled is True
    assert config.managed_ledger_default_mark_delete_rate_limit == 0.5


def test_every_field_can_be_set_by_its_camel_case_name() -> None:
    def check(field: Field[Any]) -> None:
        default = field.default
        text = str(default).lower() if isinstance(default, bool) else str(default)
        text = ",".join(default) if isinstance(default, tuple) else text
        text = "" if default is None else text
        assert parse_config(f"{camel_case(field.name)}={text}", "broker.conf") == BrokerConfig()

    check_each(fields(BrokerConfig), check, name=lambda field: field.name)


def test_a_set_of_names_is_separated_by_commas() -> None:
    config = parse_config("superUserRoles=admin, ops,,admin", "broker.conf")
    assert config.super_user_roles == ("admin", "ops")


def test_upper_case_abbreviations_are_understood() -> None:
    config = parse_config("defaultRetentionSizeInMB=-1", "broker.conf")
    assert config.default_retention_size_in_mb == -1


def test_keys_are_spelt_as_apache_pulsar_does() -> None:
    spelt = {key.lower(): key for key in APACHE_KEYS}
    ours = [camel_case(field.name) for field in fields(BrokerConfig)]
    assert {key: spelt.get(key.lower(), key) for key in ours} == {key: key for key in ours}


def test_what_the_file_does_not_say_comes_from_the_base() -> None:
    base = BrokerConfig(cluster_name="west", max_message_size=5)
    config = parse_config("maxMessageSize=7", "broker.conf", base)
    assert (config.cluster_name, config.max_message_size) == ("west", 7)


def test_an_unknown_key_is_refused_with_line_and_closest_name() -> None:
    message = refusal("clusterName=a\nmaxMesageSize=5")
    assert message == (
        "broker.conf, line 2: unknown key 'maxMesageSize'; did you mean maxMessageSize?"
    )


def test_a_key_like_nothing_else_is_to_be_removed() -> None:
    assert refusal("zzz=1") == "broker.conf, line 1: unknown key 'zzz'; remove it"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("maxMessageSize=many", "must be a whole number"),
        ("managedLedgerDefaultMarkDeleteRateLimit=x", "must be a number"),
        ("brokerDeduplicationEnabled=yes", "must be true or false"),
        ("brokerServicePort=70000", "must be at most 65535"),
        ("defaultRetentionTimeInMinutes=-2", "must be at least -1"),
        ("maxTransactionTimeoutMs=-1", "must be at least 0"),
        ("managedLedgerDefaultMarkDeleteRateLimit=nan", "must be a number"),
        ("allowAutoTopicCreationType=some", "must be one of: non-partitioned, partitioned"),
        (
            "subscriptionTypesEnabled=Shared,exclusive",
            "must be a comma-separated list of: Exclusive, Shared",
        ),
        ("maxMessageSize=2147483648", "must be at most 2147483647"),
        ("clusterName", "not key=value"),
        ("clusterName=a\nclusterName=b", "line 2: clusterName is set twice"),
    ],
)
def test_a_wrong_value_is_refused(line: str, reason: str) -> None:
    assert reason in refusal(line)


@pytest.mark.parametrize(
    "line",
    [
        "tokenSecretKey {}",
        "tokenSecretKey: {}",
        "{}",
        "{}==",
        "tokenSecretKye={}",
        "superUserRoles=admin\n{}",
    ],
)
def test_a_bad_line_is_refused_without_repeating_a_secret(line: str) -> None:
    secret = "c3VwZXItc2VjcmV0LXZhbHVlLXRoYXQtbXVzdC1ub3Qtc2hvdw"
    said = refusal(line.format(secret))
    assert ", line " in said
    assert secret[:12] not in said


def test_every_key_of_apache_pulsar_is_taken_and_those_without_effect_are_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "".join(f"{key}=\n" for key in sorted(APACHE_KEYS)) + "bookkeeper_anything=1\n"
    config = parse_config(text, "broker.conf")
    ports = {"broker_service_port": None, "web_service_port": None}  # empty means none
    assert config == replace(BrokerConfig(), **ports)  # type: ignore[arg-type]
    (record,) = caplog.records
    assert "numIOThreads" in record.message
    assert "bookkeeper_anything" in record.message
    assert "maxMessageSize" not in record.message


def test_nothing_is_said_where_every_key_has_an_effect(caplog: pytest.LogCaptureFixture) -> None:
    parse_config("maxMessageSize=5", "broker.conf")
    assert not caplog.records


def test_environment_variables_set_keys_over_the_file_s(caplog: pytest.LogCaptureFixture) -> None:
    base = parse_config("maxMessageSize=5\nclusterName=a", "broker.conf")
    variables = {
        "PULSAR_PREFIX_maxMessageSize": "7",
        "PULSAR_PREFIX_numIOThreads": "3",
        "HOME": "/",
    }
    config = environment_config(variables, base)
    assert (config.max_message_size, config.cluster_name) == (7, "a")
    assert "numIOThreads" in caplog.text
    with pytest.raises(ConfigError, match="environment variable PULSAR_PREFIX_zzz: unknown key"):
        environment_config({"PULSAR_PREFIX_zzz": "1"}, base)


def test_no_limit_is_the_most_that_the_broker_allows() -> None:
    text = "maxNumPartitionsPerPartitionedTopic=0\nmaxActiveTransactionsPerCoordinator=0"
    assert parse_config(text, "broker.conf") == BrokerConfig()


def test_a_key_that_is_said_twice_alike_is_taken() -> None:
    assert parse_config("clusterName=a\nclusterName=a", "broker.conf").cluster_name == "a"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.conf cannot be read"):
        load_config(tmp_path / "nowhere.conf")


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("clusterName=north\n", encoding="utf-8")
    assert load_config(file).cluster_name == "north"


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.9.8.7", "::1"])
def test_other_machines_do_not_reach_a_loopback_address(address: str) -> None:
    assert BrokerConfig(bind_address=address).local_only


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "127.example.org", "10.127.0.1", ""])
def test_others_may_reach_any_other_address(address: str) -> None:
    assert not BrokerConfig(bind_address=address).local_only
