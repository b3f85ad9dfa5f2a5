"""`pybroker tokens`, with the options of `pulsar tokens`; the broker accepts its tokens."""

import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from credentials import token
from jwt.api_jws import PyJWS

import pybroker.testing
from pybroker.client import AuthenticationToken, Client
from pybroker.process.cli import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str, code: int = 0) -> str:
        assert main(["tokens", *arguments]) == code
        ended = capsys.readouterr()
        return (ended.out if code == 0 else ended.err).strip()

    return run


@pytest.fixture
def secret(run: Any, tmp_path: Path) -> str:
    path = str(tmp_path / "my-secret.key")
    run("create-secret-key", "--output", path)
    return path


def test_a_token_of_a_secret_key_lets_its_subject_in(run: Any, secret: str) -> None:
    made = run("create", "--secret-key", f"file://{secret}", "--subject", "alice")
    with (
        pybroker.testing.broker(
            authentication_enabled=True,
            authentication_providers=("token",),
            token_secret_key=f"file://{secret}",
        ) as running,
        Client(running.service_url, authentication=AuthenticationToken(made)) as client,
    ):
        client.create_producer("t").send(b"x")


def test_a_token_in_a_file_is_its_owners_and_may_be_renewed(
    run: Any, secret: str, tmp_path: Path
) -> None:
    file = tmp_path / "app.token"
    file.write_text("an older one, readable for all")
    file.chmod(0o644)
    words = ("create", "-sk", secret, "-s", "app", "-e", "30d", "--output", str(file))
    assert run(*words) == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(run("validate", "-sk", secret, "-f", str(file)))["sub"] == "app"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app.token", "my-secret.key"]


@pytest.mark.parametrize("algorithm", ["RS256", "PS512", "ES256", "ES512"])
def test_a_pair_of_keys_signs_and_validates(run: Any, tmp_path: Path, algorithm: str) -> None:
    private, public = str(tmp_path / "private"), str(tmp_path / "public")
    pair = ("--output-private-key", private, "--output-public-key", public)
    run("create-key-pair", "-a", algorithm, *pair)
    made = run("create", "-a", algorithm, "-pk", private, "-s", "alice", "-e", "1d")
    claims = json.loads(run("validate", "-a", algorithm, "-pk", public, made))
    assert claims["sub"] == "alice"
    assert run("validate", "-a", algorithm, "-pk", public, made[:-8], code=1)


def test_show_says_what_is_in_a_token(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("show", token("alice")) == '{"alg":"HS256"}\n---\n{"sub":"alice"}'
    monkeypatch.setenv("TOKEN", token("bob"))
    assert run("show").endswith('{"sub":"bob"}')
    monkeypatch.setattr("sys.stdin", io.StringIO(token("carol") + "\n"))
    assert run("show", "--stdin").endswith('{"sub":"carol"}')
    assert "not a token" in run("show", "x", code=1)


def test_which_token_must_be_said(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    assert "no token given" in run("show", code=1)


def test_expiry_and_headers_are_in_the_token(run: Any, secret: str, tmp_path: Path) -> None:
    made = run("create", "-sk", secret, "-s", "a", "-e", "2h", "-h", "kid=7")
    file = tmp_path / "token"
    file.write_text(made)
    header, _, claims = run("show", "-f", str(file)).splitlines()
    assert json.loads(header) == {"alg": "HS256", "kid": "7"}
    assert json.loads(claims)["exp"]
    expired = token("a", key=Path(secret).read_bytes(), exp=1)
    assert "expired" in run("validate", "-sk", secret, expired, code=1)


@pytest.mark.parametrize("time", ["soon", "-1h", "0d", "1e3", "99999999999y", "h"])
def test_a_time_that_is_none_is_refused(run: Any, secret: str, time: str) -> None:
    assert "not a lifetime" in run(
        "create", "-sk", secret, "-s", "a", f"--expiry-time={time}", code=1
    )


def test_a_secret_is_its_owners_and_never_written_over(run: Any, secret: str) -> None:
    assert stat.S_IMODE(Path(secret).stat().st_mode) == 0o600
    assert "File exists" in run("create-secret-key", "-o", secret, code=1)


def test_a_secret_in_base64_goes_into_the_configuration(run: Any) -> None:
    made = run("create-secret-key", "--base64")
    created = run("create", "-sk", f"data:;base64,{made}", "-s", "a")
    assert run("validate", "-sk", made, created) == '{"sub":"a"}'


def test_algorithm_and_key_must_go_together(run: Any, secret: str) -> None:
    assert "create-key-pair" in run("create-secret-key", "-a", "RS256", code=1)
    assert "secret key" in run("create", "-sk", secret, "-s", "a", "-a", "RS256", code=1)
    assert "not a private key" in run("create", "-pk", secret, "-s", "a", code=1)


@pytest.mark.parametrize("public", ["my-secret.key", "private"])
def test_a_pair_of_keys_is_written_over_no_other_key(
    run: Any, secret: str, tmp_path: Path, public: str
) -> None:
    before, path = Path(secret).read_bytes(), str(tmp_path / public)
    private = str(tmp_path / "private")
    pair = ("--output-private-key", private, "--output-public-key", path)
    assert "File exists" in run("create-key-pair", *pair, code=1)
    assert Path(secret).read_bytes() == before
    assert run("create", "-pk", private, "-s", "alice")


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"exp": "x"}, "exp must be a number"),
        ({"exp": True}, "exp must be a number"),
        ({"exp": 1}, "has expired"),
        ({"nbf": 2**40}, "not valid yet"),
    ],
)
def test_a_token_that_no_broker_takes_is_not_valid(
    run: Any, secret: str, claims: dict[str, Any], said: str
) -> None:
    made = token("alice", Path(secret).read_bytes(), **claims)
    assert said in run("validate", "-sk", secret, made, code=1)


def test_claims_that_are_none_are_not_valid(run: Any, secret: str) -> None:
    made = PyJWS().encode(b"[1]", Path(secret).read_bytes(), "HS256")
    assert "not a JSON object" in run("validate", "-sk", secret, made, code=1)
