"""The source of each setting: a default, a line of a file, the environment, an option."""

from pathlib import Path

import pytest
from documents import ROOT, blocks

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.configuration.config_file import ConfigError, load_config
from pybroker.process.cli import main


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """The source of each `key=value`."""
    assert main(["standalone", "--print-config", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {
        setting.strip(): origin for setting, _, origin in (line.partition("  # ") for line in lines)
    }


def test_every_setting_is_printed_with_where_it_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# comment\nclusterName=east\nmaxMessageSize=1024\n")
    monkeypatch.setenv("PULSAR_PREFIX_maxMessageSize", "2048")
    found = printed(capsys, "--config", str(conf), "--http-port", "0")
    assert len(found) == len(BrokerConfig.__dataclass_fields__)
    assert found["clusterName=east"] == f"{conf}, line 2"
    assert found["maxMessageSize=2048"] == "environment variable PULSAR_PREFIX_maxMessageSize"
    assert found["webServicePort=0"] == "option --http-port"
    assert found["journalSyncData=true"] == "default"


def test_secrets_are_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("tokenSecretKey=data:;base64,c2VjcmV0\nbasicAuthConf=file:///etc/htpasswd\n")
    found = printed(capsys, "--config", str(conf))
    assert "tokenSecretKey=(hidden)" in found
    assert "basicAuthConf=file:///etc/htpasswd" in found


def test_printing_starts_no_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    printed(capsys, "--data-dir", str(data))
    assert not data.exists()


def toml(folder: Path, text: str) -> Path:
    path = folder / "pybroker.toml"
    path.write_text(text)
    return path


def test_a_toml_file_has_the_same_keys(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        """
        clusterName = "east"
        maxMessageSize = 1024  # bytes
        brokerDeduplicationEnabled = true
        managedLedgerDefaultMarkDeleteRateLimit = 0.5
        superUserRoles = ["admin", "ops"]
        """,
    )
    assert load_config(path) == BrokerConfig(
        cluster_name="east",
        max_message_size=1024,
        broker_deduplication_enabled=True,
        managed_ledger_default_mark_delete_rate_limit=0.5,
        super_user_roles=("admin", "ops"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("maxMesageSize = 5", "line 1: unknown key 'maxMesageSize'; did you mean maxMessageSize?"),
        ("\nmaxMessageSize = 'x'", "line 2: maxMessageSize=x must be a whole number"),
        ("[broker]\nmaxMessageSize = 5", "line 1: [broker] is a table; write its keys at the top"),
        ("clusterName = 2024-01-01", "line 1: clusterName must be a string, a number, a boolean"),
        ("clusterName = ", "not valid TOML"),
    ],
)
def test_a_toml_file_is_refused_with_the_line_that_is_wrong(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(toml(tmp_path, text))
    assert message in str(caught.value)


def test_toml_settings_are_printed_with_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = toml(tmp_path, '\nclusterName = "east"\n')
    assert printed(capsys, "--config", str(path))["clusterName=east"] == f"{path}, line 2"


def test_the_example_of_configuration_md_is_understood(tmp_path: Path) -> None:
    (example,) = (b for b in blocks(ROOT / "docs/configuration.md") if b.language == "toml")
    config = load_config(toml(tmp_path, example.text))
    assert config.broker_deduplication_enabled
    assert config.super_user_roles == ("admin", "ops")
