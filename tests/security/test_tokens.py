"""Which tokens name a role, and which are refused: algorithms, times, audiences, claims."""

import asyncio
import base64
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from credentials import SECRET, SECRET_URL, TOKEN_SETTINGS, token
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import AuthenticationError
from pybroker.security.authentication import authentication_of
from pybroker.security.identity import Credentials, Login
from pybroker.security.keys import KeyFailure, read_source
from pybroker.security.token import MAX_TOKEN_BYTES

NOW_S = 1_800_000_000
RSA = rsa.generate_private_key(65537, 2048)
CURVE = ec.generate_private_key(ec.SECP256R1())


class Clock:
    def now_ms(self) -> int:
        return NOW_S * 1000

    def monotonic_s(self) -> float:
        return 0.0


def public_der(key: Any) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def public_pem(key: Any) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def private_der(key: Any) -> bytes:
    return key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def url(data: bytes) -> str:
    return "data:;base64," + base64.b64encode(data).decode()


def login(shown: str | bytes, **settings: Any) -> Login:
    config = BrokerConfig(**TOKEN_SETTINGS | settings)
    authentication = authentication_of(config, Clock())
    assert authentication is not None
    data = shown.encode() if isinstance(shown, str) else shown
    return asyncio.run(authentication.login(Credentials("token", data), "1.2.3.4"))


def refusal(shown: str | bytes, **settings: Any) -> str:
    with pytest.raises(AuthenticationError) as caught:
        login(shown, **settings)
    return str(caught.value)


def with_public_key(key: Any, algorithm: str) -> dict[str, str]:
    return {
        "token_secret_key": "",
        "token_public_key": url(public_der(key)),
        "token_public_alg": algorithm,
    }


def test_the_subject_is_the_role() -> None:
    assert login(token("alice")) == Login("alice")


def test_space_around_a_token_is_none_of_it() -> None:
    assert login(token("alice") + "\n") == Login("alice")


@pytest.mark.parametrize("algorithm", ["HS384", "HS512"])
def test_a_secret_key_takes_all_of_its_family(algorithm: str) -> None:
    assert login(token("alice", algorithm=algorithm)).role == "alice"


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (RSA, "PS256"), (CURVE, "ES256")])
def test_a_public_key_verifies_what_its_private_one_signed(key: Any, algorithm: str) -> None:
    settings = with_public_key(key, algorithm)
    assert login(token("alice", key, algorithm), **settings).role == "alice"


def test_a_token_signed_with_another_key_is_refused() -> None:
    assert "InvalidSignatureError" in refusal(token("alice", SECRET[::-1]))


def test_no_signature_is_refused_whatever_its_spelling() -> None:
    for name in ("none", "None", "NONE", "nOnE", ""):
        header = base64.urlsafe_b64encode(json.dumps({"alg": name}).encode()).rstrip(b"=")
        body = token("alice").split(".")[1].encode()
        refusal(header + b"." + body + b".")


def test_a_public_key_is_no_secret_key() -> None:
    """The classic confusion: HS256 with the bytes of the public key."""
    body = b".".join(token("admin").encode().split(b".")[:2])
    digest = hmac.digest(public_der(RSA), body, "sha256")
    forged = body + b"." + base64.urlsafe_b64encode(digest).rstrip(b"=")
    assert "InvalidAlgorithmError" in refusal(forged, **with_public_key(RSA, "RS256"))


def test_the_configuration_names_the_family() -> None:
    signed = token("alice", RSA, "PS256")
    assert "InvalidAlgorithmError" in refusal(signed, **with_public_key(RSA, "RS256"))


def test_expired_and_not_yet_valid_tokens_are_refused() -> None:
    assert "expired" in refusal(token("a", exp=NOW_S))
    assert "not valid yet" in refusal(token("a", nbf=NOW_S + 1))
    assert login(token("a", exp=NOW_S + 1, nbf=NOW_S)).expires_ms == (NOW_S + 1) * 1000


def test_a_skew_of_clocks_is_allowed_where_it_is_configured() -> None:
    skew = {"token_allowed_clock_skew_seconds": 5}
    assert login(token("a", exp=NOW_S - 4), **skew).expires_ms == (NOW_S + 1) * 1000
    assert login(token("a", nbf=NOW_S + 5), **skew).role == "a"
    refusal(token("a", exp=NOW_S - 5), **skew)


@pytest.mark.parametrize("time", ["soon", True, [1], 1e300, -1e300, float("nan"), {}])
def test_a_time_that_is_none_is_refused(time: Any) -> None:
    refusal(token("a", exp=time))


def test_an_audience_must_be_among_the_tokens() -> None:
    settings = {"token_audience": "here", "token_audience_claim": "aud"}
    assert login(token("a", aud="here"), **settings).role == "a"
    assert login(token("a", aud=["there", "here"]), **settings).role == "a"
    for other in ("there", ["there"], None, 5, {"here": 1}):
        assert "audience" in refusal(token("a", aud=other), **settings)


def test_an_audience_without_a_claims_name_is_looked_for_in_aud() -> None:
    assert "audience" in refusal(token("a"), token_audience="here")
    assert login(token("a", aud="here"), token_audience="here").role == "a"


def test_the_role_may_stand_in_another_claim() -> None:
    settings = {"token_auth_claim": "roles"}
    assert login(token("x", roles="ops"), **settings).role == "ops"
    assert login(token("x", roles=["ops", "dev"]), **settings).role == "ops"
    for wrong in (None, "", "  ", 7, [], [7], "r" * 1025):
        assert "has no role" in refusal(token("x", roles=wrong), **settings)


def test_a_role_that_cannot_be_encoded_is_refused() -> None:
    """It would be stored as the owner of transactions."""
    assert "surrogate" in refusal(token("alice\ud800"))


@pytest.mark.parametrize(
    "shown",
    [b"", b"x", b"..", b"a.b.c", b"\xff\xfe\x00", b"." * 1000, token("a").encode()[:-4]],
    ids=repr,
)
def test_what_is_no_token_is_refused(shown: bytes) -> None:
    refusal(shown)


def test_a_token_that_is_too_long_is_refused_unread() -> None:
    assert str(MAX_TOKEN_BYTES) in refusal(token("a" * MAX_TOKEN_BYTES))


def test_a_header_nested_deep_is_refused() -> None:
    deep = base64.urlsafe_b64encode(b"[" * 11_000).rstrip(b"=")
    refusal(deep + b".e30.c2ln")


def test_claims_that_are_no_object_are_refused() -> None:
    from jwt.api_jws import PyJWS

    for payload in (b"[]", b"1", b"null", b"x", b"[" * 9000):
        refusal(PyJWS().encode(payload, SECRET, "HS256"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"token_secret_key": ""}, "tokenSecretKey or tokenPublicKey"),
        ({"token_secret_key": url(b"short")}, "HS256 needs 32"),
        ({"token_secret_key": "file:///nowhere/key"}, "No such file"),
        ({"token_secret_key": "/nowhere/key"}, "if it names a file, that file does not exist"),
        ({"token_secret_key": "data:;base64,*"}, "cannot be read"),
        ({"token_secret_key": "!!"}, "it is neither an existing file nor base64"),
        ({"token_secret_key": url(public_pem(RSA))}, "key of a pair"),
        ({"token_secret_key": url(public_der(RSA))}, "key of a pair"),
        ({"token_secret_key": url(public_der(CURVE))}, "key of a pair"),
        ({"token_secret_key": url(private_der(RSA))}, "key of a pair"),
        ({"token_public_key": "x"}, "not both"),
        (with_public_key(RSA, "HS256"), "needs tokenSecretKey"),
        (with_public_key(RSA, "none"), "not a token algorithm"),
        (with_public_key(RSA, "ES256"), "not the kind of key"),
        (with_public_key(CURVE, "RS256"), "not the kind of key"),
        (with_public_key(RSA, "RS256") | {"token_public_key": url(b"x")}, "not a public key"),
        ({"token_audience_claim": "aud"}, "tokenAudience"),
        ({"authentication_providers": ()}, "authenticationProviders"),
        ({"authentication_providers": ("kerberos",)}, "not supported"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_configuration_that_admits_no_client_or_every_client_is_refused(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(KeyFailure, match=said):
        login("", **settings)


def test_a_key_that_cannot_be_read_is_not_repeated() -> None:
    with pytest.raises(KeyFailure) as caught:
        login("", token_secret_key="my*secret")
    assert "my*secret" not in str(caught.value)


@pytest.mark.parametrize("spelling", ["data:;base64,", "data:application/octet-stream;base64,", ""])
def test_keys_come_in_several_spellings(spelling: str) -> None:
    key = spelling + SECRET_URL.partition(",")[2]
    assert login(token("a"), token_secret_key=key).role == "a"


def test_keys_come_in_files(tmp_path: Any) -> None:
    path = tmp_path / "a key"
    path.write_bytes(SECRET)
    for spelling in (str(path), f"file://{str(path).replace(' ', '%20')}"):
        assert login(token("a"), token_secret_key=spelling).role == "a"


def test_apaches_class_names_are_understood() -> None:
    name = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
    assert login(token("a"), authentication_providers=(name,)).role == "a"


def test_a_key_file_that_is_missing_is_not_taken_for_base64(tmp_path: Path) -> None:
    """Otherwise its path would be the secret, which anyone could guess."""
    missing = str(tmp_path / "a/directory/with/a/name/that/would/pass/for/base64")
    with pytest.raises(KeyFailure, match="No such file"):
        read_source(missing.replace("-", "/"), "tokenSecretKey")


def test_a_file_that_is_too_long_for_a_key_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (1024 * 1024 + 1))
    with pytest.raises(KeyFailure, match="the file has more than 1048576 bytes"):
        read_source(str(path), "basicAuthConf")


def test_a_long_key_in_base64_is_no_path() -> None:
    key = bytes(range(255)) * 4
    for encoded in (base64.urlsafe_b64encode(key), base64.b64encode(key)):
        assert read_source(encoded.decode(), "tokenPublicKey") == key
