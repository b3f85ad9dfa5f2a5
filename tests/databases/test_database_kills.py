"""Whatever is killed at whatever step: rows, messages and acknowledgements agree.

`make database-kills` draws steps at random, also beside another program.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from database_kills import VICTIMS, Shop, faults_at_steps, open_shop

# A broker or a database takes seconds to start again.
EVERY = {"process": 1, "broker": 3, "database": 3}
CASES = [
    pytest.param(
        database,
        victim,
        marks=[pytest.mark.postgresql] if database == "postgresql" else [],
        id=f"{database}-{victim}",
    )
    for database, victims in VICTIMS.items()
    for victim in victims
]


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with ExitStack() as stack:
        yield open_shop(stack, postgresql=database == "postgresql")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("database", "victim"), CASES)
def test_what_is_killed_at_any_step_breaks_no_promise(
    shop: Shop, database: str, victim: str
) -> None:
    assert faults_at_steps(shop, database, victim, EVERY[victim]) == []
