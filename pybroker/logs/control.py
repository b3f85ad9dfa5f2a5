"""The log levels of a running broker: those set by the admin API, or the configured ones."""

import logging
from collections.abc import Callable

from pybroker.logs.levels import Levels

log = logging.getLogger("pybroker")


class LogControl:
    def __init__(self, configured: Levels, recent: Callable[[], list[str]] = list) -> None:
        """`recent` returns the most recent lines."""
        self.recent = recent
        self._configured = configured
        self._applied = configured
        self._chosen: Levels | None = None

    @property
    def chosen(self) -> str | None:
        """The levels set at run time; None while the configuration applies."""
        return None if self._chosen is None else str(self._chosen)

    def choose(self, text: str) -> None:
        """Set the levels until `reset`. Raises ValueError with a message for the user."""
        self._chosen = Levels.parse(text)
        self._apply()

    def reset(self) -> None:
        self._chosen = None
        self._apply()

    def configure(self, levels: Levels) -> None:
        """Note the levels of a reloaded configuration. Levels set at run time stay in effect."""
        self._configured = levels
        self._apply()

    def _apply(self) -> None:
        """Logs the change before it takes effect, because it may silence the log."""
        levels = self._chosen or self._configured
        if str(levels) != str(self._applied):
            log.warning("the log level changes from %s to %s", self._applied, levels)
            self._applied = levels
        levels.apply()
