"""An .htpasswd file as written by `htpasswd`, and the cost of guessing."""

import asyncio
import base64
from typing import Any

import bcrypt
import pytest

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import AuthenticationError, PulsarError, TooManyRequests
from pybroker.base.runtime import SystemClock
from pybroker.security import basic
from pybroker.security.authentication import Authentication, authentication_of
from pybroker.security.htpasswd import apr1, padding
from pybroker.security.identity import Credentials
from pybroker.security.keys import KeyFailure
from pybroker.security.password_queue import MOST_OF_ADDRESS

BCRYPT = bcrypt.hashpw(b"in bcrypt", bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$")
# The second line is the output of `openssl passwd -apr1 -salt r31..... myPassword`.
FILE = f"""
# users
berta:{BCRYPT}
anna:$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/
susi:{{SHA}}fEqNCco3Yq9h5ZUglD3CZJT4lBs=
"""


def settings(text: str = FILE) -> BrokerConfig:
    conf = "data:;base64," + base64.b64encode(text.encode()).decode()
    return BrokerConfig(
        authentication_enabled=True, authentication_providers=("basic",), basic_auth_conf=conf
    )


def made(text: str = FILE) -> Authentication:
    authentication = authentication_of(settings(text), SystemClock())
    assert authentication is not None
    return authentication


async def role_of(authentication: Authentication, shown: bytes) -> str:
    return (await authentication.login(Credentials("basic", shown), "1.2.3.4")).role


def login(shown: bytes) -> str:
    return asyncio.run(role_of(made(), shown))


@pytest.mark.parametrize(
    "shown", [b"berta:in bcrypt", b"anna:myPassword", b"susi:123456"], ids=repr
)
def test_each_hash_knows_its_password(shown: bytes) -> None:
    assert login(shown) == shown.partition(b":")[0].decode()


@pytest.mark.parametrize(
    "shown",
    [
        *(user + wrong for user in (b"berta:", b"anna:", b"susi:") for wrong in (b"", b"x", b"\0")),
        b"nobody:myPassword",
        b":",
        b"",
        b"anna",
        b"anna:" + b"x" * 2000,
        b"\xff:\xff",
    ],
    ids=repr,
)
def test_whatever_is_wrong_is_refused(shown: bytes) -> None:
    with pytest.raises(AuthenticationError):
        login(shown)


def test_an_unknown_user_and_a_wrong_password_are_told_the_same() -> None:
    said = set()
    for shown in (b"nobody:x", b"berta:x", b"susi:x"):
        with pytest.raises(AuthenticationError) as caught:
            login(shown)
        said.add(str(caught.value))
    assert len(said) == 1


LINES = [
    "a:" + bcrypt.hashpw(b"p", bcrypt.gensalt(6)).decode(),
    "b:" + bcrypt.hashpw(b"p", bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$"),
    "c:$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/",
    "d:{SHA}fEqNCco3Yq9h5ZUglD3CZJT4lBs=",
]


@pytest.mark.parametrize("lines", [LINES, LINES[::-1], LINES[1:], LINES[2:], LINES[3:], LINES[:2]])
def test_a_wrong_password_costs_the_same_for_every_user_and_for_none(
    monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    work: list[int] = []

    def counted(_: bytes, digest: str) -> bool:
        """Work in rounds of bcrypt; apr1 counts little, and SHA nothing."""
        if digest.startswith("$2"):
            work.append(100 << int(digest[4:6]))
        return work.append(1) is not None if digest.startswith("$apr1$") else False

    monkeypatch.setattr(basic, "matches", counted)
    costs = []
    for user in [*(line[:1] for line in lines), "nobody"]:
        work.clear()
        with pytest.raises(AuthenticationError):
            asyncio.run(role_of(made("\n".join(lines)), user.encode() + b":x"))
        costs.append(sum(work))
    assert max(costs) - min(costs) <= 1


def test_what_is_compared_besides_can_be_compared() -> None:
    made_up = padding("$2b$04$" + "x" * 53, "$2b$06$" + "x" * 53)
    assert [digest[:7] for digest in made_up] == ["$2b$04$", "$2b$05$"]
    assert not any(bcrypt.checkpw(b"x", digest.encode()) for digest in made_up)


def test_a_password_that_was_right_is_remembered_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def twice() -> list[str]:
        authentication = made()
        first = await role_of(authentication, b"berta:in bcrypt")
        monkeypatch.setattr(basic, "matches", None)
        return [first, await role_of(authentication, b"berta:in bcrypt")]

    assert asyncio.run(twice()) == ["berta", "berta"]


def test_a_limited_number_of_an_addresss_passwords_wait_to_be_checked() -> None:
    async def flood() -> list[Any]:
        authentication = made()
        shown = [b"anna:%d" % number for number in range(60)]
        tries = (role_of(authentication, each) for each in shown)
        return await asyncio.gather(*tries, return_exceptions=True)

    kinds = [type(error) for error in asyncio.run(flood())]
    assert kinds.count(AuthenticationError) == MOST_OF_ADDRESS + 1  # one more is being checked
    assert kinds.count(TooManyRequests) == 60 - MOST_OF_ADDRESS - 1


def test_apr1_is_apaches() -> None:
    assert apr1(b"", "x") == "$apr1$x$tMwYqBfQwi3FYAr0aJc8M/"
    assert apr1(b"p" * 40, "saltsalt") == "$apr1$saltsalt$Iipf0Mlpj86Tx3fhJ.st01"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("anna:plain", "not hashed"),
        ("anna", "user:hash"),
        ("# nobody", "contains no users"),
        ("anna:rqXexS6ZhobKA", "not hashed"),
    ],
)
def test_a_file_that_nobody_can_use_stops_the_start(text: str, said: str) -> None:
    with pytest.raises(KeyFailure, match=said):
        made(text)


def test_guessing_goes_at_the_pace_of_forgiveness() -> None:
    async def guess() -> list[str]:
        authentication = made()
        said = []
        for number in range(120):
            try:
                await role_of(authentication, b"susi:%d" % number)
            except PulsarError as error:
                said.append(str(error))
        return said

    said = asyncio.run(guess())
    assert said[0] == "Unknown user or wrong password"
    assert "Too many failed logins" in said[-1]
