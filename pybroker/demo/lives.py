"""Runs drivers one after the other on one checkpoint, each with a plan for its death."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pybroker.demo.driver import Settings
from pybroker.demo.processes import Broker, Driver, DriverFailed
from pybroker.demo.report import Verdict, say
from pybroker.demo.topics import until

LIFE_TIMEOUT_S: Final = 240.0
_ATTEMPTS: Final = 3
_KILLED: Final = -9
# If the checkpoint is lost, so is the transaction's id: nobody can end the transaction, so it must
# time out.
_SHORT_TIMEOUT_MS: Final = 20_000
_RIVALS_PATIENCE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Life:
    """One driver's run: its crash points, and the action after its death."""

    crash_plan: str
    with_rival: bool = False
    loses_checkpoint: bool = False

    @property
    def ends_killed(self) -> bool:
        return "driver@" in self.crash_plan


@dataclass(frozen=True, slots=True)
class Stage:
    """What the scenes share."""

    directory: Path
    broker: Broker
    verdict: Verdict

    @property
    def rival_checkpoint(self) -> Path:
        return self.directory / "rival-checkpoint"

    @property
    def rival_log(self) -> Path:
        return self.directory / "rival.log"


def live(stage: Stage, settings: Settings, lives: tuple[Life, ...]) -> None:
    """Runs the drivers. Raises DriverFailed."""
    kills = 0
    for number, life in enumerate(lives, start=1):
        say(f"{settings.pipeline}: driver {number} of {len(lives)} starts ({life.crash_plan})")
        exit_code = _survived(stage, settings, life, number)
        kills += exit_code == _KILLED
        if life.loses_checkpoint:
            shutil.rmtree(settings.checkpoint)
            say(f"{settings.pipeline}: its checkpoint was deleted")
    planned = sum(life.ends_killed for life in lives)
    stage.verdict.claim(
        kills == planned,
        f"{settings.pipeline}: {kills} of {planned} planned driver kills at labelled points; the "
        f"broker has been killed {stage.broker.kills} times so far",
    )


def _survived(stage: Stage, settings: Settings, life: Life, number: int) -> int:
    """The exit code, 0 or -9. A driver that fails is restarted, as any service would be."""
    mine = _settings_of(life, settings)
    for attempt in range(_ATTEMPTS):
        log = stage.directory / f"{settings.pipeline}-driver-{number}-{attempt}.log"
        stage.verdict.log = log
        driver = Driver(mine.to_json(), log)
        if life.with_rival:
            _challenge(stage, settings, driver)
        exit_code = driver.wait(LIFE_TIMEOUT_S)
        say(f"{settings.pipeline}: driver {number} {_fate(exit_code)}")
        if exit_code in (0, _KILLED):
            return exit_code
        say(f"{settings.pipeline}: unplanned exit, restarting; see {log}")
    raise DriverFailed(
        f"{settings.pipeline}: driver {number} failed {_ATTEMPTS} times without being killed", log
    )


def _settings_of(life: Life, settings: Settings) -> Settings:
    mine = replace(settings, crash_plan=life.crash_plan)
    if life.loses_checkpoint:
        return replace(mine, transaction_timeout_ms=_SHORT_TIMEOUT_MS)
    return mine


def _fate(exit_code: int) -> str:
    return "was killed (-9)" if exit_code == _KILLED else f"ended with exit code {exit_code}"


def _challenge(stage: Stage, settings: Settings, driver: Driver) -> None:
    """Starts a second driver on the same subscription while the first is in a transaction."""
    holding = stage.directory / "go-on.holding"
    until(lambda: holding.exists() or not driver.is_running, LIFE_TIMEOUT_S)
    if not driver.is_running:
        return
    say("payments: the driver holds its transaction open; a second driver starts")
    rival = replace(
        settings,
        checkpoint=str(stage.rival_checkpoint),
        patience_s=_RIVALS_PATIENCE_S,
        with_plain_sink=False,
    )
    exit_code = Driver(rival.to_json(), stage.rival_log).wait(LIFE_TIMEOUT_S)
    say(f"payments: the second driver {_fate(exit_code)}; the first continues")
    (stage.directory / "go-on").touch()
