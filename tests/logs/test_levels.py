"""`logLevel`: a level for all areas, and exceptions for some."""

import logging
from collections.abc import Iterator

import pytest

from pybroker.logs.levels import AREAS, OFF, Levels

NAMES = ["", "pybroker", "managed_ledger", *(name for names in AREAS.values() for name in names)]


@pytest.fixture(autouse=True)
def levels_as_before() -> Iterator[None]:
    before = {name: logging.getLogger(name).level for name in NAMES}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def enabled(logger: str) -> str:
    """The lowest level that this logger writes."""
    names = ("debug", "info", "warning", "error")
    found = logging.getLogger(logger)
    said = (n for n in names if found.isEnabledFor(logging.getLevelNamesMapping()[n.upper()]))
    return next(said, "off")


def test_an_area_has_its_own_level_and_the_others_the_general_one() -> None:
    Levels.parse("warning, Storage=debug").apply()
    assert enabled("managed_ledger.storage.embedded.journal") == "debug"
    assert enabled("pybroker.broker.topics") == enabled("pybroker") == "warning"


def test_every_area_can_be_turned_up_alone() -> None:
    for area, loggers in AREAS.items():
        Levels.parse(f"error,{area}=debug").apply()
        for other, names in AREAS.items():
            wanted = "debug" if other == area else "off" if other == "access" else "error"
            assert {enabled(name) for name in names} == {wanted}, (area, other)
        assert loggers


def test_accesses_are_logged_only_when_they_are_named() -> None:
    Levels.parse("debug").apply()
    assert enabled("pybroker.access") == "off"
    Levels.parse("warning,access=info").apply()
    assert enabled("pybroker.access") == "info"


def test_an_empty_text_is_the_usual_level() -> None:
    Levels.parse("").apply()
    assert (enabled("pybroker.audit"), enabled("asyncio")) == ("info", "warning")
    assert enabled("uvicorn.error") == "warning", "it repeats what the broker says"


def test_off_silences_everything() -> None:
    Levels.parse("off").apply()
    assert {enabled(name) for name in NAMES} == {"off"}
    assert Levels.parse("off").of("audit") == OFF


def test_levels_read_as_they_are_written() -> None:
    text = "warning,storage=debug,access=info"
    assert str(Levels.parse(text)) == text
    assert str(Levels.parse("storage=debug")) == "info,storage=debug"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("loud", "'loud' is not a level; levels are debug, info, warning, error, off"),
        ("disk=debug", "'disk' is not an area; areas are storage, "),
        ("info,debug", "info and debug cannot both apply"),
        ("storage=debug,storage=off", "storage cannot be both debug and off"),
        ("storage=", "'' is not a level"),
        ("=debug", "'' is not an area"),
    ],
)
def test_what_is_no_level_is_refused_with_those_that_are(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Levels.parse(text)
