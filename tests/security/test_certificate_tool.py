"""`pybroker certificates`: the broker and its clients accept what it creates."""

import contextlib
import shutil
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import Authority

import pybroker.testing
from pybroker.client import AuthenticationTLS, Client, PulsarException
from pybroker.process.cli import main


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def ran(*words: str, code: int = 0) -> str:
        assert main(["certificates", "--output", str(tmp_path), *words]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return ran


def test_a_broker_and_a_role_have_what_they_need(run: Any, tmp_path: Path) -> None:
    made = run("--host", "localhost", "--host", "127.0.0.1", "--role", "alice")
    assert [Path(line).name for line in made.splitlines()] == ["ca.crt", "broker.crt", "alice.crt"]
    trust = str(tmp_path / "ca.crt")
    settings: dict[str, Any] = {
        "authentication_enabled": True,
        "authentication_providers": ("tls",),
        "broker_service_port_tls": 0,
        "web_service_port_tls": 0,
        "tls_certificate_file_path": str(tmp_path / "broker.crt"),
        "tls_key_file_path": str(tmp_path / "broker.key"),
        "tls_trust_certs_file_path": trust,
    }
    mine = (str(tmp_path / "alice.crt"), str(tmp_path / "alice.key"))
    with pybroker.testing.broker(http=True, **settings) as broker:
        with Client(
            broker.service_url_tls,
            AuthenticationTLS(),
            tls_trust_certs_file_path=trust,
            tls_certificate_file_path=mine[0],
            tls_private_key_file_path=mine[1],
        ) as client:
            client.create_producer("t").send(b"x")
        by_address = broker.service_url_tls.replace("localhost", "127.0.0.1")
        stranger = Client(by_address, tls_trust_certs_file_path=trust, operation_timeout_seconds=3)
        with stranger, pytest.raises(PulsarException):
            stranger.create_producer("t")
        assert httpx.get(broker.admin_url + "/metrics").status_code == 200


def made_by_the_tool(folder: Path) -> None:
    assert main(["certificates", "--output", str(folder)]) == 0


def made_for_tests(folder: Path) -> None:
    Authority(folder).issue("broker")


@pytest.mark.parametrize("make", [made_by_the_tool, made_for_tests])
def test_certificates_are_accepted_by_strict_verification_as_in_python_3_13(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path)
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "broker.crt", tmp_path / "broker.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    for end in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert client.getpeercert()


def test_keys_are_their_owners(run: Any, tmp_path: Path) -> None:
    run("--role", "alice")
    for name in ("ca.key", "broker.key", "alice.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_what_is_there_stays_unless_it_is_renewed(run: Any, tmp_path: Path) -> None:
    run()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert run() == ""
    assert run("--role", "bob").split() == [str(tmp_path / "bob.crt")]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    run("--renew")
    after = {name: (tmp_path / name).read_bytes() for name in before}
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"broker.crt", "broker.key"}


def test_an_authority_without_its_key_is_none(run: Any, tmp_path: Path) -> None:
    run()
    (tmp_path / "ca.key").unlink()
    assert "an authority needs both" in run(code=1)


def test_an_authority_with_another_key_is_none(run: Any, tmp_path: Path) -> None:
    run()
    shutil.copy(tmp_path / "broker.key", tmp_path / "ca.key")
    assert "do not belong together" in run(code=1)


@pytest.mark.parametrize("name", ["ca", "broker"])
@pytest.mark.parametrize("words", [[], ["--renew"]], ids=["new", "renewed"])
def test_a_run_that_ended_between_key_and_certificate_is_mended_by_the_next(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: list[str]
) -> None:
    if words:
        run()
    replace = Path.replace

    def ends(made: Path, path: Path) -> Path:
        if path.name == f"{name}.crt":
            raise OSError("the machine went down")
        return replace(made, path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", ends)
        run(*words, code=1 if name == "broker" or not words else 0)
    key = (tmp_path / f"{name}.key").read_bytes()
    run()
    assert (tmp_path / f"{name}.key").read_bytes() == key
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    context.load_cert_chain(tmp_path / "broker.crt", tmp_path / "broker.key")
    assert run() == ""


@pytest.mark.parametrize("words", [[], ["--renew"]], ids=["new", "renewed"])
def test_a_file_that_is_no_key_is_not_written_over(
    run: Any, tmp_path: Path, words: list[str]
) -> None:
    secret = tmp_path / "secret.key"  # signs tokens; named as in docker/secure/keys.sh
    secret.write_bytes(bytes(range(32)))
    assert "is not overwritten" in run("--role", "secret", *words, code=1)
    assert secret.read_bytes() == bytes(range(32))


def test_an_authority_that_is_none_is_told(run: Any, tmp_path: Path) -> None:
    run()
    (tmp_path / "ca.key").write_text("nothing")
    assert "is not a private key" in run("--renew", code=1)
    run("--output", str(tmp_path / "other"))
    (tmp_path / "other" / "ca.crt").write_text("nothing")
    assert "cannot be read" in run("--output", str(tmp_path / "other"), code=1)


@pytest.mark.parametrize(
    "words",
    [
        ["--role", "../x"],
        ["--role", ".x"],
        ["--role", "ca"],
        ["--role", "broker"],
        ["--role", "CA"],
        ["--role", "a" * 65],
        ["--days", "0"],
        ["--days", "99999"],
        ["--host", "höst"],
        ["--host", ""],
        ["--host", "a b"],
    ],
)
def test_what_cannot_be_made_is_told(run: Any, words: list[str]) -> None:
    assert "--" in run(*words, code=1)
