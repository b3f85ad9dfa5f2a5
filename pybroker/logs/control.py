"""Which levels hold while a broker runs: what the admin API set, or else the configuration."""

import logging

from pybroker.logs.levels import Levels

log = logging.getLogger("pybroker")


class LogControl:
    def __init__(self, configured: Levels) -> None:
        self._configured = configured
        self._applied = configured
        self._chosen: Levels | None = None

    @property
    def chosen(self) -> str | None:
        """What was set at run time; None while the configuration holds."""
        return None if self._chosen is None else str(self._chosen)

    def choose(self, text: str) -> None:
        """Until `reset`, or the end of the process. Raises ValueError with a sentence."""
        self._chosen = Levels.parse(text)
        self._apply()

    def reset(self) -> None:
        self._chosen = None
        self._apply()

    def configure(self, levels: Levels) -> None:
        """The configuration was read again. What was set at run time goes on holding."""
        self._configured = levels
        self._apply()

    def _apply(self) -> None:
        """Said before it holds: it may be what silences the log."""
        levels = self._chosen or self._configured
        if str(levels) != str(self._applied):
            log.warning("the log level changes from %s to %s", self._applied, levels)
            self._applied = levels
        levels.apply()
