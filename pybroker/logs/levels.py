"""Log levels by area: `info`, or `warning,storage=debug,access=info`.

The word without an area applies to all areas that are not named. Two areas differ: `access` logs
nothing unless it is named, and `audit` logs refusals at `warning` and changes at `info`. Other
libraries log from `warning` on.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

OFF: Final = logging.CRITICAL + 10
LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "debug": logging.DEBUG,
        "info": logging.INFO,
        "warning": logging.WARNING,
        "error": logging.ERROR,
        "off": OFF,
    }
)
USUAL: Final = "info"

# The loggers of each area, including their children.
AREAS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "storage": ("managed_ledger",),
        "topics": ("pybroker.broker",),
        "transactions": ("pybroker.transaction",),
        "connections": ("pybroker.session", "pybroker.server"),
        "security": ("pybroker.security", "pybroker.tls"),
        "http": ("pybroker.admin", "uvicorn"),
        "audit": ("pybroker.audit",),
        "access": ("pybroker.access",),
    }
)
_OURS: Final = ("pybroker", "managed_ledger")
_SILENT_UNLESS_NAMED: Final = ("access",)
_FOREIGN: Final = ("uvicorn",)  # at `info` it only repeats the broker's lines


@dataclass(frozen=True, slots=True)
class Levels:
    """Level names: the general level, and the levels of areas that have their own."""

    general: str = USUAL
    areas: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Levels":
        """Raises ValueError with a message for the user. An empty text means the usual level."""
        general: str | None = None
        areas: dict[str, str] = {}
        for word in filter(None, (part.strip().lower() for part in text.split(","))):
            area, equals, level = (part.strip() for part in word.rpartition("="))
            if level not in LEVELS:
                raise ValueError(f"{level[:40]!r} is not a level; levels are {', '.join(LEVELS)}")
            if not equals:
                if general not in (None, level):
                    raise ValueError(f"{general} and {level} cannot both apply to every area")
                general = level
            elif area not in AREAS:
                raise ValueError(f"{area[:40]!r} is not an area; areas are {', '.join(AREAS)}")
            elif areas.setdefault(area, level) != level:
                raise ValueError(f"{area} cannot be both {areas[area]} and {level}")
        return cls(general or USUAL, areas)

    def __str__(self) -> str:
        return ",".join((self.general, *(f"{area}={level}" for area, level in self.areas.items())))

    def of(self, area: str) -> int:
        if area not in self.areas and area in _SILENT_UNLESS_NAMED:
            return OFF
        return LEVELS[self.areas.get(area, self.general)]

    def apply(self) -> None:
        """Takes effect at once, for every logger of this process."""
        general = LEVELS[self.general]
        logging.getLogger().setLevel(max(general, logging.WARNING))
        for name in _OURS:
            logging.getLogger(name).setLevel(general)
        for area, names in AREAS.items():
            level = self.of(area)
            for name in names:
                foreign = name in _FOREIGN and level == logging.INFO
                logging.getLogger(name).setLevel(logging.WARNING if foreign else level)
