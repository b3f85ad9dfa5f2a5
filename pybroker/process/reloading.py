"""SIGHUP: what may change while the broker runs is read again. It never ends the broker.

That is the certificates, the passwords, the keys of tokens, and of the configuration file the log
levels and the keys that are dynamic (`broker/dynamic_configuration.py`). What else has changed in
the file is named, for it needs a restart; and a file that cannot be used changes nothing.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Collection
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from pybroker.base.config import BrokerConfig
from pybroker.logs.control import LogControl
from pybroker.logs.levels import Levels

if TYPE_CHECKING:
    from pybroker.process.app import Broker

log = logging.getLogger("pybroker")

_LOG_LEVEL: Final = "log_level"


def reload_on_hangup(
    read: Callable[[], BrokerConfig], configured: BrokerConfig, broker: "Broker", logs: LogControl
) -> None:
    """`read` gives the configuration as it stands now, and raises ValueError if it is none;
    `configured` is what the broker was started with.
    """

    def received() -> None:
        broker.reload_credentials()
        try:
            new = read()
        except ValueError as error:
            log.error("SIGHUP: the configuration is kept as it was: %s", error)
            return
        logs.configure(Levels.parse(new.log_level))
        broker.dynamic.configure(new)
        if changed := _changed(configured, new, {_LOG_LEVEL, *broker.dynamic.fields}):
            log.warning("SIGHUP: these keys take effect at the next start: %s", changed)
        log.info(
            "SIGHUP: certificates, passwords, keys of tokens, log levels and dynamic configuration "
            "were read again"
        )

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, received)


def _changed(before: BrokerConfig, now: BrokerConfig, at_once: Collection[str]) -> str:
    from pybroker.base.config_file import camel_case  # takes a while: who starts waits

    names = [field.name for field in fields(BrokerConfig) if field.name not in at_once]
    changed = (name for name in names if getattr(before, name) != getattr(now, name))
    return ", ".join(map(camel_case, changed))
