"""Sessions expire, are limited in number, and end with their credentials."""

from typing import Any

import pytest

from pybroker.base.errors import AuthenticationError
from pybroker.console.sessions import (
    IDLE_S,
    MOST_OF_ROLE,
    MOST_SESSIONS,
    WHOLE_S,
    FormTokens,
    Sessions,
)
from pybroker.security.identity import Credentials, Identity

HERE = "127.0.0.1"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return int(self.now_s * 1000)


class Authentication:
    """Every token names its role, except for revoked ones."""

    def __init__(self) -> None:
        self.revoked: set[bytes] = set()

    async def identify_request(
        self, shown: list[Credentials], method: str, address: str, original: str
    ) -> Identity:
        assert (method, address, original) == ("token", HERE, "")
        (credentials,) = shown
        if credentials.data in self.revoked:
            raise AuthenticationError("revoked")
        return Identity(credentials.data.decode())


class World:
    def __init__(self) -> None:
        self.clock, self.authentication = Clock(), Authentication()
        authentication: Any = self.authentication
        self.sessions = Sessions(authentication, self.clock)

    async def begin(self, role: str = "ann") -> str:
        return await self.sessions.begin(Credentials("token", role.encode()), HERE)

    async def role(self, session_id: str, by_itself: bool = False) -> str | None:
        found = await self.sessions.identity(session_id, HERE, by_itself)
        return None if found is None else found.role


@pytest.fixture
def world() -> World:
    return World()


def run(work: Any) -> Any:
    import asyncio

    return asyncio.run(work)


def test_a_session_is_its_credentials(world: World) -> None:
    async def scenario() -> None:
        session = await world.begin()
        assert await world.role(session) == "ann"
        assert await world.role(session + "x") is None
        world.authentication.revoked.add(b"ann")
        assert await world.role(session) is None
        world.authentication.revoked.clear()
        assert await world.role(session) is None, "it does not come back"

    run(scenario())


def test_who_cannot_log_in_has_no_session(world: World) -> None:
    async def scenario() -> None:
        world.authentication.revoked.add(b"ann")
        with pytest.raises(AuthenticationError):
            await world.begin()
        assert len(world.sessions) == 0

    run(scenario())


def test_a_session_ends_when_nobody_uses_it(world: World) -> None:
    async def scenario() -> None:
        session = await world.begin()
        world.clock.now_s = IDLE_S
        assert await world.role(session) == "ann"
        world.clock.now_s = 2 * IDLE_S
        assert await world.role(session, by_itself=True) == "ann"
        world.clock.now_s = 2 * IDLE_S + 1
        assert await world.role(session) is None, "an open page alone does not keep it"

    run(scenario())


def test_a_session_ends_however_much_it_is_used(world: World) -> None:
    async def scenario() -> None:
        session = await world.begin()
        while world.clock.now_s < WHOLE_S:
            assert await world.role(session) == "ann"
            world.clock.now_s += IDLE_S / 2
        world.clock.now_s = WHOLE_S + 1
        assert await world.role(session) is None

    run(scenario())


def test_sessions_are_bounded_by_role_and_together(world: World) -> None:
    async def scenario() -> None:
        first = await world.begin()
        for _ in range(MOST_OF_ROLE):
            last = await world.begin()
        assert await world.role(first) is None and await world.role(last) == "ann"
        for number in range(MOST_SESSIONS):
            await world.begin(f"role-{number}")
        assert len(world.sessions) == MOST_SESSIONS
        assert await world.role(last) is None

    run(scenario())


def test_ids_are_random_and_credentials_are_not_shown(world: World) -> None:
    async def scenario() -> None:
        assert len({await world.begin() for _ in range(10)}) == 10
        assert "ann" not in repr(Credentials("token", b"ann"))

    run(scenario())


def test_a_form_fits_one_browser_and_one_process() -> None:
    tokens = FormTokens()
    assert tokens.fits(tokens.of("a"), "a")
    assert not tokens.fits(tokens.of("a"), "b")
    assert not FormTokens().fits(tokens.of("a"), "a")
    assert not tokens.fits("é\udc80", "a")
