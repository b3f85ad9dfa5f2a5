"""CONNECT and HTTP requests with credentials, and connections whose credentials have expired."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from credentials import SECRET, TOKEN_SETTINGS, bearer, token
from raw_client import RawClient, Refused

import pybroker.testing
from pybroker.client import AuthenticationBasic, AuthenticationToken, Client
from pybroker.process.app import Broker
from pybroker.security import refused_logins
from pybroker.security.htpasswd import apr1
from pybroker.server.connections import on_connect
from pybroker.server.connections.on_connect import REFRESH
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
TOPIC = "persistent://public/default/t"
USERS = (
    "data:;base64,"
    + base64.b64encode(
        b"anna:$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/"  # myPassword
    ).decode()
)
SETTINGS: dict[str, Any] = TOKEN_SETTINGS | {
    "authentication_providers": ("token", "basic"),
    "basic_auth_conf": USERS,
    "proxy_roles": ("proxy", "proxy2"),
}
REFUSED = 3  # ServerError.AuthenticationError
FORBIDDEN = 4


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, **SETTINGS) as running:
        yield running


@pytest.fixture(autouse=True)
def forgiven(broker: RunningBroker) -> None:
    """Clears the failures of earlier tests."""

    async def forgive(running: Broker) -> None:
        assert running.authentication is not None
        running.authentication._providers["basic"].refused._failures.clear()  # type: ignore[attr-defined]

    broker.call(forgive)


def raw(broker: RunningBroker, shown: str = "", method: str = "token", **fields: Any) -> RawClient:
    fields = {"auth_method_name": method, "auth_data": shown.encode()} | fields
    return RawClient(broker.service_url, **fields)


def refusal(broker: RunningBroker, *shown: str, **fields: Any) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        raw(broker, *shown, **fields)
    return caught.value.args


def principals(broker: RunningBroker) -> list[Any]:
    async def look(running: Broker) -> list[Any]:
        logins = [session.login for session in running.server.sessions]
        return [login and (login.identity.role, login.identity.original) for login in logins]

    return broker.call(look)


# -- CONNECT


@pytest.mark.parametrize(
    "who", [AuthenticationToken(token("alice")), AuthenticationBasic("anna", "myPassword")]
)
def test_the_client_works_with_either_kind_of_credentials(broker: RunningBroker, who: Any) -> None:
    with Client(broker.service_url, authentication=who) as client:
        client.create_producer(TOPIC).send(b"x")


def test_no_credentials_are_refused_with_what_would_do(broker: RunningBroker) -> None:
    code, said = refusal(broker, "", "none")
    assert code == REFUSED
    assert "token, basic" in said


def test_wrong_credentials_are_refused(broker: RunningBroker) -> None:
    assert refusal(broker, token("alice")[:-4] + "abcd")[0] == REFUSED
    assert refusal(broker, "anna:x", "basic") == (REFUSED, "Unknown user or wrong password")
    assert refusal(broker, token("alice"), "basic")[0] == REFUSED
    assert refusal(broker, "", "tls")[0] == REFUSED


def test_credentials_that_are_too_long_are_refused(broker: RunningBroker) -> None:
    assert refusal(broker, "x" * 40_000)[0] == REFUSED


def test_commands_that_came_with_a_refused_connect_are_not_handled(broker: RunningBroker) -> None:
    """They are in the same packet as CONNECT, whose password is still being checked."""
    import socket

    from pybroker.wire.frames import encode_frame

    connect = pb.CommandConnect(
        client_version="x", protocol_version=21, auth_method_name="basic", auth_data=b"anna:x"
    )
    look = pb.CommandLookupTopic(topic=TOPIC, request_id=7)
    packet = encode_frame(pb.BaseCommand(type=_T.CONNECT, connect=connect)) + encode_frame(
        pb.BaseCommand(type=_T.LOOKUP, lookupTopic=look)
    )
    host, port = broker.service_url.removeprefix("pulsar://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(packet)
        received = b""
        while data := connection.recv(65536):
            received += data
    assert b"wrong password" in received
    assert b"pulsar://" not in received


def test_commands_that_came_with_a_good_connect_are_handled_after_it(broker: RunningBroker) -> None:
    with raw(broker, "anna:myPassword", "basic") as client:
        assert client.kinds_before_pong() == []


def test_a_proxy_must_name_the_original_role_and_no_other_client_may(broker: RunningBroker) -> None:
    assert refusal(broker, token("proxy"))[0] == FORBIDDEN
    assert refusal(broker, token("proxy"), original_principal="proxy2")[0] == FORBIDDEN
    assert refusal(broker, token("alice"), original_principal="bob")[0] == FORBIDDEN
    with raw(broker, token("proxy"), original_principal="bob"):
        assert ("proxy", "bob") in principals(broker)
    with raw(broker, token("alice"), original_principal="alice"):
        assert ("alice", None) in principals(broker)


def test_an_original_principal_is_verified_where_that_is_configured() -> None:
    settings = SETTINGS | {"authenticate_original_auth_data": True}
    proxy = token("proxy")
    with pybroker.testing.broker(**settings) as running:
        bob = {"original_auth_data": token("bob"), "original_auth_method": "token"}
        with raw(running, proxy, original_principal="admin", **bob):
            assert principals(running) == [("proxy", "bob")]
        assert refusal(running, proxy, original_principal="admin")[0] == REFUSED
        forged = bob | {"original_auth_data": token("bob", b"x" * 32)}
        assert refusal(running, proxy, **forged)[0] == REFUSED
        assert refusal(running, token("alice"), **bob)[0] == FORBIDDEN


def test_an_unknown_method_gives_the_anonymous_role_and_a_wrong_token_none() -> None:
    settings = SETTINGS | {"anonymous_user_role": "guest"}
    with pybroker.testing.broker(http=True, **settings) as running:
        with raw(running, "", "none"), raw(running, "", "kerberos"), RawClient(running.service_url):
            assert principals(running) == [("guest", None)] * 3
        assert refusal(running, "x")[0] == REFUSED
        assert httpx.get(f"{running.admin_url}/admin/v2/clusters").status_code == 200


# -- credentials that expire


def expire(broker: RunningBroker) -> None:
    """Check all logins as of `LATER_S`."""

    async def as_if_later(running: Broker) -> None:
        for session in running.server.sessions:
            on_connect.check_login(session, LATER_S * 1000)

    broker.call(as_if_later)


LATER_S = 4_000_000_000
REFRESHES = {"feature_flags": pb.FeatureFlags(supports_auth_refresh=True)}
SHORT = token("alice", exp=LATER_S - 1)


def respond(client: RawClient, shown: str) -> None:
    data = pb.AuthData(auth_method_name="token", auth_data=shown.encode())
    client.send(_T.AUTH_RESPONSE, "authResponse", pb.CommandAuthResponse(response=data))


def test_who_expired_is_challenged_once_and_goes_on_with_a_new_token(broker: RunningBroker) -> None:
    with raw(broker, SHORT, **REFRESHES) as client:
        expire(broker)
        challenge = client.receive(_T.AUTH_CHALLENGE)
        assert challenge.challenge.auth_method_name == "token"
        assert challenge.challenge.auth_data == REFRESH
        respond(client, token("alice", exp=LATER_S + 1))
        assert client.kinds_before_pong() == []
        expire(broker)
        assert client.kinds_before_pong() == []


def test_who_does_not_answer_a_challenge_is_closed(broker: RunningBroker) -> None:
    with raw(broker, SHORT, **REFRESHES) as client:
        expire(broker)
        expire(broker)
        client.wait_closed()


def test_who_cannot_be_challenged_is_closed(broker: RunningBroker) -> None:
    with raw(broker, SHORT) as client:
        expire(broker)
        client.wait_closed()


@pytest.mark.parametrize(
    "answer", [token("bob", exp=LATER_S + 1), SHORT[:-4], "x" * 40_000], ids=["bob", "bad", "long"]
)
def test_a_challenge_is_not_answered_with_another_role_or_nothing(
    broker: RunningBroker, answer: str
) -> None:
    with raw(broker, SHORT, **REFRESHES) as client:
        expire(broker)
        respond(client, answer)
        client.wait_closed()


def test_a_response_that_nobody_asked_for_changes_nothing(broker: RunningBroker) -> None:
    with raw(broker, SHORT, **REFRESHES) as client:
        respond(client, "nonsense")
        assert client.kinds_before_pong() == []


def test_a_proxys_connection_ends_with_its_token(broker: RunningBroker) -> None:
    proxy = token("proxy", exp=LATER_S - 1)
    with raw(broker, proxy, original_principal="bob", **REFRESHES) as client:
        expire(broker)
        client.wait_closed()


def test_the_client_answers_challenges_with_what_its_function_says(broker: RunningBroker) -> None:
    tokens = iter([SHORT, token("alice", exp=LATER_S + 1)])
    who = AuthenticationToken(lambda: next(tokens))
    with Client(broker.service_url, authentication=who) as client:
        producer = client.create_producer(TOPIC)
        expire(broker)
        producer.send(b"x")
        expire(broker)
        producer.send(b"y")
    assert list(tokens) == []


# -- HTTP


def ask(broker: RunningBroker, headers: dict[str, str], path: str = "/admin/v2/clusters") -> Any:
    return httpx.get(broker.admin_url + path, headers=headers)


def basic(text: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


def test_http_takes_bearer_and_basic(broker: RunningBroker) -> None:
    assert ask(broker, bearer("alice")).json() == ["standalone"]
    assert ask(broker, basic("anna:myPassword")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer x.y.z"},
        {"Authorization": "Basic ???"},
        {"Authorization": "Digest x"},
        {"Authorization": "Bearer " + "x" * 20_000},
        basic("anna:x"),
        bearer("alice", exp=1),
        bearer("alice") | {"X-Pulsar-Auth-Method-Name": "basic"},
    ],
    ids=str,
)
def test_http_refuses_everybody_else(broker: RunningBroker, headers: dict[str, str]) -> None:
    for path in ("/admin/v2/clusters", "/no/such/route", "/metricsx", "/metrics/../admin"):
        answer = ask(broker, headers, path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer, Basic")
        assert answer.json()["reason"]


def test_metrics_are_open_unless_they_are_not(broker: RunningBroker) -> None:
    assert ask(broker, {}, "/metrics").status_code == 200
    with pybroker.testing.broker(
        http=True, **SETTINGS, authenticate_metrics_endpoint=True
    ) as running:
        assert ask(running, {}, "/metrics").status_code == 401
        assert ask(running, bearer("alice"), "/metrics").status_code == 200


def test_a_proxy_names_the_original_role_over_http_too(broker: RunningBroker) -> None:
    assert ask(broker, bearer("proxy")).status_code == 403
    assert ask(broker, bearer("alice") | {"X-Original-Principal": "bob"}).status_code == 403
    assert ask(broker, bearer("proxy") | {"X-Original-Principal": "bob"}).status_code == 200


def test_over_http_a_proxy_is_believed_also_where_it_is_verified_otherwise() -> None:
    with pybroker.testing.broker(
        http=True, **SETTINGS, authenticate_original_auth_data=True
    ) as running:
        headers = bearer("proxy") | {"X-Original-Principal": "bob"}
        assert ask(running, headers).status_code == 200


def test_a_method_must_be_named_where_that_is_configured() -> None:
    with pybroker.testing.broker(http=True, **SETTINGS, strict_auth_method=True) as running:
        assert ask(running, bearer("alice")).status_code == 401
        named = bearer("alice") | {"X-Pulsar-Auth-Method-Name": "token"}
        assert ask(running, named).status_code == 200


def test_the_configuration_does_not_tell_its_secrets(broker: RunningBroker) -> None:
    path = "/admin/v2/brokers/configuration/runtime"
    shown = ask(broker, bearer("alice"), path).json()
    assert shown["tokenSecretKey"] == shown["basicAuthConf"] == "*****"
    assert shown["authenticationProviders"] == "token,basic"


def test_a_client_with_a_bad_token_hears_no_reason_and_the_audit_log_has_it(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    forged = token("alice", SECRET[::-1])
    assert refusal(broker, forged)[1] == "Failed to authenticate"
    answer = ask(broker, {"Authorization": f"Bearer {forged}"})
    assert (answer.status_code, answer.json()) == (401, {"reason": "Failed to authenticate"})
    assert "InvalidSignatureError" in str([vars(record) for record in caplog.records])


# -- many refusals


def test_bad_tokens_shut_out_no_other_client_of_the_same_address(broker: RunningBroker) -> None:
    said = {refusal(broker, "x")[1] for _ in range(150)}
    assert said == {"Failed to authenticate"}
    assert ask(broker, bearer("alice")).status_code == 200
    raw(broker, token("alice")).close()
    broker.wait_until(lambda: principals(broker) == [])


def test_bad_tokens_behind_a_proxy_shut_out_no_other_client_there() -> None:
    settings = SETTINGS | {"authenticate_original_auth_data": True}
    with pybroker.testing.broker(**settings) as running:

        def behind(shown: str) -> dict[str, Any]:
            fields = {"original_principal": "x", "original_auth_method": "token"}
            return fields | {"original_auth_data": shown}

        for _ in range(150):
            refusal(running, token("proxy"), **behind("garbage"))
        raw(running, token("proxy"), **behind(token("alice"))).close()


def test_guesses_at_one_user_s_password_shut_out_no_other_user(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_logins, "FAILURES_PER_SECOND", 0.0)
    said = [refusal(broker, "anna:x", "basic")[1] for _ in range(105)]
    assert "Too many failed logins of this user" in said[-1]
    assert refusal(broker, "berta:x", "basic")[1] == "Unknown user or wrong password"
    raw(broker, token("alice")).close()


def test_guesses_do_not_shut_out_the_right_password(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_logins, "FAILURES_PER_SECOND", 0.0)
    raw(broker, "anna:myPassword", "basic").close()
    assert "Too many" in [refusal(broker, "anna:x", "basic")[1] for _ in range(105)][-1]
    raw(broker, "anna:myPassword", "basic").close()


# -- files that are read again


def apache_md5(user: str, password: str) -> str:
    return f"{user}:{apr1(password.encode(), 'r31.....')}\n"


def reload(broker: RunningBroker) -> None:
    async def work(running: Broker) -> None:
        running.reload_credentials()

    broker.call(work)


def clusters(broker: RunningBroker, **auth: Any) -> int:
    return httpx.get(f"{broker.admin_url}/admin/v2/clusters", **auth).status_code


def test_a_changed_password_applies_to_later_logins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It applies over HTTP at once; a logged-in connection continues."""
    file = tmp_path / "users"
    file.write_text(apache_md5("anna", "before") + apache_md5("berta", "hers"))
    settings = SETTINGS | {"basic_auth_conf": str(file)}
    with pybroker.testing.broker(http=True, **settings) as broker:
        before, after = ("anna", "before"), ("anna", "after")
        assert [clusters(broker, auth=auth) for auth in (before, after)] == [200, 401]
        with raw(broker, "anna:before", "basic") as connected:
            file.write_text(apache_md5("anna", "after"))
            assert clusters(broker, auth=before) == 200, "nobody has asked for a reload"
            reload(broker)
            assert [clusters(broker, auth=auth) for auth in (before, after)] == [401, 200]
            assert clusters(broker, auth=("berta", "hers")) == 401
            assert refusal(broker, "anna:before", "basic")[0] == REFUSED
            assert "passwords of basicAuthConf (users: 1)" in caplog.text
            file.write_text("anna:plain")
            reload(broker)
            assert "previous ones stay in effect: basicAuthConf, line 1" in caplog.text
            assert clusters(broker, auth=after) == 200
            connected.create_producer(TOPIC)


def test_a_changed_token_key_applies_to_later_logins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "key"
    file.write_bytes(SECRET)
    settings = SETTINGS | {"token_secret_key": file.as_uri()}
    with pybroker.testing.broker(http=True, **settings) as broker:
        shown, other = bearer("anna"), bearer("anna", key=b"another" * 10)
        assert [clusters(broker, headers=each) for each in (shown, other)] == [200, 401]
        with raw(broker, token("anna")) as connected:
            file.write_bytes(b"another" * 10)
            reload(broker)
            assert "reloaded the token key" in caplog.text
            assert [clusters(broker, headers=each) for each in (shown, other)] == [401, 200]
            assert refusal(broker, token("anna"))[0] == REFUSED
            file.write_bytes(b"short")
            reload(broker)
            assert "previous ones stay in effect: tokenSecretKey has 5 bytes" in caplog.text
            assert clusters(broker, headers=other) == 200
            connected.create_producer(TOPIC)
