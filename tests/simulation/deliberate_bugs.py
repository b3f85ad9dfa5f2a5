"""Five wrong brokers, each made by one change to the right one: what the simulation must catch."""

from collections.abc import Callable
from contextlib import AbstractContextManager

BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {}
