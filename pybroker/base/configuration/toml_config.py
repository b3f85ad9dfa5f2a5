"""Turns the settings of a TOML file into lines of broker.conf: the same keys, at the top level.

brokerServicePort = 6650
superUserRoles = ["admin", "ops"]
"""

import re
import tomllib
from collections.abc import Iterator


def toml_settings(text: str, source: str) -> Iterator[tuple[str, str]]:
    """The location of each setting, and `key=value`. Raises ValueError."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{source}: not valid TOML: {error}") from None
    for key, value in values.items():
        where = _where(text, source, key)
        yield where, f"{key}={_as_text(value, key, where)}"


def _where(text: str, source: str, key: str) -> str:
    pattern = re.compile(rf"""\s*\[?["']?{re.escape(key)}["']?\s*[=.\]]""")
    lines = enumerate(text.splitlines(), start=1)
    number = next((number for number, line in lines if pattern.match(line)), None)
    return source if number is None else f"{source}, line {number}"


def _as_text(value: object, key: str, where: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, int | float | str) for item in value):
        return ",".join(_as_text(item, key, where) for item in value)
    if isinstance(value, dict):
        raise ValueError(f"{where}: [{key[:80]}] is a table; write its keys at the top level")
    raise ValueError(f"{where}: {key[:80]} must be a string, a number, a boolean or a list of them")
