"""SIGHUP reloads the settings that may change while the broker runs. It never ends the broker.

It reloads certificates, passwords and token keys, and from the configuration file the log levels
and the dynamic keys (`broker/dynamic_configuration.py`). Other changed keys are logged, because
they need a restart. An unusable file changes nothing.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from pybroker.base.configuration.config import BrokerConfig
from pybroker.logs.control import LogControl
from pybroker.logs.levels import Levels

if TYPE_CHECKING:
    from pybroker.process.app import Broker

log = logging.getLogger("pybroker")

_LOG_LEVEL: Final = "log_level"


def reload_on_hangup(
    read: Callable[[], BrokerConfig], configured: BrokerConfig, broker: "Broker", logs: LogControl
) -> None:
    """`read` returns the current configuration, or raises ValueError if it is invalid. `configured`
    is the configuration with which the broker was started.
    """

    def received() -> None:
        reloaded = broker.reload_credentials()
        reloaded |= dict.fromkeys(("log levels", "dynamic configuration"), configure())
        _say(reloaded)

    def configure() -> bool:
        try:
            new = read()
        except ValueError as error:
            log.error("SIGHUP: the configuration is unchanged: %s", error)
            return False
        logs.configure(Levels.parse(new.log_level))
        broker.dynamic.configure(new)
        if changed := _changed(configured, new, {_LOG_LEVEL, *broker.dynamic.fields}):
            log.warning("SIGHUP: these keys take effect at the next start: %s", changed)
        return True

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, received)


def _say(reloaded: Mapping[str, bool]) -> None:
    """What was reloaded, and what was not: its error was logged before."""
    done = ", ".join(what for what, is_done in reloaded.items() if is_done) or "nothing"
    failed = ", ".join(what for what, is_done in reloaded.items() if not is_done)
    if failed:
        log.error(
            "SIGHUP: reloaded %s; not reloaded, for the reasons given above: %s; mend the files "
            "and send SIGHUP again",
            done,
            failed,
        )
    else:
        log.info("SIGHUP: reloaded %s", done)


def _changed(before: BrokerConfig, now: BrokerConfig, at_once: Collection[str]) -> str:
    from pybroker.base.configuration.config_file import camel_case  # slow to import

    names = [field.name for field in fields(BrokerConfig) if field.name not in at_once]
    changed = (name for name in names if getattr(before, name) != getattr(now, name))
    return ", ".join(map(camel_case, changed))
