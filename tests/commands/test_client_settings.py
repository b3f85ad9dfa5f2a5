"""Credentials and client.conf: our commands accept the settings of Apache Pulsar's."""

import json
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from credentials import TOKEN_SETTINGS, token

import pybroker.testing
from pybroker.commands.client_conf import client_conf, switch
from pybroker.commands.credentials import credentials
from pybroker.process.cli import main

JAVA = "org.apache.pulsar.client.impl.auth."


@pytest.mark.parametrize("params", ["token:abc", "abc", '{"token": "abc"}'])
def test_a_token_is_said_in_three_ways(params: str) -> None:
    for plugin in (JAVA + "AuthenticationToken", "AuthenticationToken", ""):
        shown = credentials(plugin, params)
        assert (shown.way, shown.token()) == ("token", "abc")


@pytest.mark.parametrize("spelt", ["file://{}", "file:{}"])
def test_a_tokens_file_is_read_again_each_time(tmp_path: Path, spelt: str) -> None:
    file = tmp_path / "a token"
    file.write_text("one\n")
    shown = credentials("AuthenticationToken", spelt.format(str(file).replace(" ", "%20")))
    assert shown.token() == "one"
    file.write_text("two")
    assert shown.token() == "two"


@pytest.mark.parametrize("params", ["userId:u,password:p:w", '{"userId":"u","password":"p:w"}'])
def test_a_password_is_said_in_two_ways(params: str) -> None:
    shown = credentials(JAVA + "AuthenticationBasic", params)
    assert (shown.way, shown.user, shown.password) == ("basic", "u", "p:w")


def test_a_certificate_is_said_by_its_files() -> None:
    shown = credentials(JAVA + "AuthenticationTls", "tlsCertFile:/a.crt,tlsKeyFile:/a.key")
    assert (shown.way, shown.certificate, shown.key) == ("tls", "/a.crt", "/a.key")


def test_no_credentials_mean_no_role() -> None:
    assert credentials("", "").way == ""


@pytest.mark.parametrize(
    ("plugin", "params", "said"),
    [
        ("Kerberos", "", "unknown --auth-plugin Kerberos"),
        ("AuthenticationToken", "", "has no token"),
        ("AuthenticationToken", "file:///nowhere", "cannot be read"),
        ("AuthenticationToken", "{", "not a JSON object"),
        ("AuthenticationBasic", "userId:u", "userId:…,password:…"),
        ("AuthenticationTls", "tlsCertFile:a", "tlsCertFile:…,tlsKeyFile:…"),
    ],
)
def test_what_is_no_credential_is_told(plugin: str, params: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        credentials(plugin, params)


@pytest.mark.parametrize("params", ["token:abc", "userId:u,password:abc"])
def test_secrets_are_not_shown_by_accident(params: str) -> None:
    plugin = "AuthenticationBasic" if "userId" in params else "AuthenticationToken"
    assert "abc" not in repr(credentials(plugin, params))


def test_a_client_conf_is_its_lines_with_a_value(tmp_path: Path) -> None:
    file = tmp_path / "client.conf"
    file.write_text("# a=b\n\n url = x=y \nempty=\nodd\n")
    assert client_conf(str(file)) == {"url": "x=y"}


def test_a_switch_is_true_or_false() -> None:
    assert switch({"a": "TRUE"}, "a", False)
    assert not switch({}, "a", False)
    with pytest.raises(ValueError, match="must be true or false"):
        switch({"a": "yes"}, "a", False)


@pytest.mark.slow
def test_both_commands_come_in_with_a_token_over_tls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("broker")
    settings: dict[str, Any] = TOKEN_SETTINGS | {
        "broker_service_port": None,
        "web_service_port": None,
        "broker_service_port_tls": 0,
        "web_service_port_tls": 0,
        "tls_certificate_file_path": certificate,
        "tls_key_file_path": key,
    }
    with pybroker.testing.broker(http=True, **settings) as broker:
        conf = tmp_path / "client.conf"
        lines = {
            "brokerServiceUrl": broker.service_url_tls,
            "webServiceUrl": broker.admin_url_tls,
            "authPlugin": JAVA + "AuthenticationToken",
            "authParams": "token:" + token("alice"),
            "tlsTrustCertsFilePath": str(authority.path),
        }
        conf.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        monkeypatch.setenv("PULSAR_CLIENT_CONF", str(conf))
        assert main(["produce", "t", "-m", "a"]) == 0
        assert main(["admin", "topics", "create-subscription", "t", "-s", "s"]) == 0
        assert main(["consume", "t", "-s", "new", "-p", "Earliest"]) == 0
        assert "content:a" in capsys.readouterr().out
        assert main(["peek", "t", "-s", "s"]) == 0
        assert main(["admin", "topics", "list", "public/default"]) == 0
        said = capsys.readouterr().out
        assert json.loads(said[said.index("[") :]) == ["persistent://public/default/t"]
        monkeypatch.delenv("PULSAR_CLIENT_CONF")
        words = ["--url", broker.service_url_tls, "--tlsTrustCertsFilePath", str(authority.path)]
        assert main(["produce", "t", "-m", "a", *words]) == 1
        words += ["--auth-params", "token:" + token("alice", key=bytes(64))]
        assert main(["produce", "t", "-m", "a", *words]) == 1
        untrusted = ["--url", broker.service_url_tls, "--timeout", "1"]
        assert main(["produce", "t", "-m", "a", *untrusted]) == 1


def test_both_commands_come_in_with_a_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("broker")
    mine = authority.issue("alice")
    settings: dict[str, Any] = {
        "authentication_enabled": True,
        "authentication_providers": ("tls",),
        "broker_service_port_tls": 0,
        "web_service_port_tls": 0,
        "tls_certificate_file_path": certificate,
        "tls_key_file_path": key,
        "tls_trust_certs_file_path": str(authority.path),
    }
    with pybroker.testing.broker(http=True, **settings) as broker:
        shown = ["--auth-plugin", "AuthenticationTls"]
        shown += ["--auth-params", f"tlsCertFile:{mine[0]},tlsKeyFile:{mine[1]}"]
        service = ["--url", broker.service_url_tls, "--tlsTrustCertsFilePath", str(authority.path)]
        assert main(["produce", "t", "-m", "a", *service, *shown]) == 0
        service = ["--admin-url", broker.admin_url_tls, "--tls-trust-cert-path"]
        assert main(["admin", *service, str(authority.path), *shown, "tenants", "list"]) == 0
        assert main(["admin", *service, str(authority.path), "tenants", "list"]) == 1
    capsys.readouterr()
