"""One run: a broker, the proxy, the pipeline, the input, the faults, and the topics at the end.

A run ends when the pipeline has caught up: the input's subscriptions have no backlog, and nothing
has passed the proxy for a while, which is short if the output is already as expected.
"""

import threading
import time
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.error import HTTPError

from pybroker.client import PulsarException
from pybroker.eos_check.asked import Asked
from pybroker.eos_check.class_archive import ClassArchive
from pybroker.eos_check.connection_trace import Event
from pybroker.eos_check.faults import Fault, Passing, Schedule, Victim
from pybroker.eos_check.inner_steps import crash_at, crash_nowhere, is_inner, passed
from pybroker.eos_check.judgement import outputs_of, same
from pybroker.eos_check.left_open import LeftOpen
from pybroker.eos_check.pipeline import Pipeline, tail
from pybroker.eos_check.proxy import Proxy
from pybroker.eos_check.room import check_room
from pybroker.eos_check.rows import Rows
from pybroker.eos_check.run_result import CannotRun, Clean, RunResult, Stopped
from pybroker.eos_check.series import CrashesOfRun
from pybroker.eos_check.settings import WAVES, Input, Places, Settings
from pybroker.eos_check.topics import Output, Topics
from pybroker.testing.broker_process import BrokerProcess

_BROKER_CONF: Final = "testMode=true\nbrokerDeleteInactiveTopicsEnabled=false\n"
_TURN_S: Final = 0.05
_QUIET_S: Final = 0.3
_ABANDONED_S: Final = 1.0
_FORGOTTEN_S: Final = 10.0  # without a request, though there is work left
# share of the run's limit; then the input is published without a subscription
_SUBSCRIBED_WITHIN: Final = 0.5
_NEXT_WAVE_WITHIN_S: Final = 5.0
_RECOVERED_S: Final = 1.0  # without a request
_ENDS_AT_MOST: Final = 20  # times that the pipeline exits by itself
_EVENTS_AT_MOST: Final = 50_000
_LIMIT_AT_LEAST_S: Final = 60.0
_TIMES_CLEAN: Final = 10.0
_TIMES_PAUSE: Final = 2.0
_ENDS_WITHIN_S: Final = 5.0  # after a broker that crashes has stopped answering
_PAUSE_S: Final = 0.2  # before a pipeline that exited by itself is restarted

_WITH_TLS: Final = (
    "the pipeline connects with TLS, and the broker of eos-check has none: let it use "
    "{service_url} as it is, which begins with pulsar://"
)
_WITH_LOGIN: Final = (
    "the broker requires a login, which eos-check does not have: remove authentication from the "
    "file that --config names"
)


def run(
    settings: Settings,
    schedule: Schedule,
    clean: Clean | None,
    stop: threading.Event,
    series: CrashesOfRun | None = None,
) -> RunResult:
    """`series` are crashes for as long as there is input; the result's schedule then contains those
    that struck.

    Raises CannotRun if the pipeline fails without any fault, Stopped if `stop` is set.
    """
    if stop.is_set():
        raise Stopped
    with TemporaryDirectory(dir=settings.directory, ignore_cleanup_errors=True) as name:
        directory = Path(name)
        (directory / "pipeline").mkdir()
        config = Path(settings.config)
        if not settings.config:  # the user's file might not enable test mode
            config = directory / "broker.conf"
            config.write_text(_BROKER_CONF)
        arguments, said = ["--config", str(config)], directory / "broker.log"
        try:
            with (
                said.open("ab") as log,
                BrokerProcess(directory / "data", arguments, log, settings.kafka) as broker,
            ):
                try:
                    return _Run(settings, schedule, clean, stop, broker, series).play(directory)
                finally:
                    broker.kill()  # faster than a stop, and the data is not needed any more
        except RuntimeError as error:
            raise CannotRun(f"{error}:\n{tail(said)}") from error
        except HTTPError as error:
            if error.code == HTTPStatus.UNAUTHORIZED:
                raise CannotRun(_WITH_LOGIN) from error
            raise
        finally:
            check_room(directory)


class _Run:
    def __init__(
        self,
        settings: Settings,
        schedule: Schedule,
        clean: Clean | None,
        stop: threading.Event,
        broker: BrokerProcess,
        series: CrashesOfRun | None = None,
    ) -> None:
        self._settings = settings
        self._faults = list(schedule)
        self._series = series
        self._had_input = False  # for the series' next crash, which may need input
        self._clean = clean
        self._stop = stop
        self._broker = broker
        self._topics = Topics(broker.service_url, broker.admin_url, settings.kafka)
        self._backlogs = Asked(lambda: self._topics.backlogs(settings.input))
        self._left_open = LeftOpen(self._topics, settings.kafka, self._note)
        self._outputs = Asked(self._read)
        self._rows = Rows((), {})
        self.result = RunResult(schedule, was_series=series is not None)
        self._started_s = self._moved_s = self._limited_from_s = time.monotonic()
        self._fallen: Victim | None = None  # set on the proxy's thread
        self._wake = threading.Event()
        self._counts: dict[Passing, int] = {}
        self._waves: list[list[Input]] = []
        self._ends = 0
        self._seen_life = 0  # the last start that sent something to the broker
        self._proxy: Proxy
        self._pipeline: Pipeline

    def play(self, directory: Path) -> RunResult:
        settings = self._settings
        self._topics.prepare(settings.input, settings.outputs)
        inputs = settings.inputs()
        waves = WAVES if self._series is None else len(inputs)
        size = -(-len(inputs) // waves)
        self._waves = [inputs[at : at + size] for at in range(0, len(inputs), size)]
        with Proxy(self._on_passing, self._on_event, settings.kafka) as proxy:
            self._proxy = proxy
            proxy.forward_to(self._broker.service_url, self._broker.kafka_bootstrap)
            places = Places(
                proxy.url,
                self._broker.admin_url,
                proxy.kafka_bootstrap,
                str(directory / "pipeline"),
            )
            environment = settings.environment(places)
            self._rows = Rows(settings.words(settings.rows, places), environment)
            self._pipeline = Pipeline(
                settings.words(settings.command, places),
                environment,
                "EOS_DIRECTORY",
                directory / "pipeline.log",
                ClassArchive(settings.directory),
                records=settings.records_classes,
            )
            try:
                self._take_next(starting=True)
                self._arm()
                self._start_pipeline()
                self._until_caught_up()
                self.result.duration_s = time.monotonic() - self._started_s
                self.result.busy_s = self._moved_s - self._started_s
                self._pipeline.end(self._stop)
            finally:
                self._pipeline.kill()
                self.result.log = self._pipeline.log_tail()
        return self.result

    # -- on the proxy's thread

    def _on_passing(self, passing: Passing) -> Victim | None:
        self.result.passings[-1].append(passing)
        number = self._counts[passing] = self._counts.get(passing, 0) + 1
        if not self._faults:
            return None
        fault = self._faults[0]
        if fault.passing != passing or fault.number != number:
            return None
        if fault.victim is Victim.PIPELINE:
            self._pipeline.kill()
        else:
            self._broker.kill()
        self._has_struck(self._faults.pop(0))
        return fault.victim

    def _has_struck(self, fault: Fault) -> None:
        self._note("FAULT", str(fault))
        self.result.passings.append([])
        self._counts.clear()
        if self._series is not None:
            self.result.schedule += (fault,)
            self._series.struck.append(fault)
            self._limited_from_s = time.monotonic()
        self._fallen = fault.victim
        self._wake.set()

    def _on_event(self, event: Event) -> None:
        self._moved_s = time.monotonic()
        self._seen_life = self._pipeline.lives
        self._left_open.follow(event, self._pipeline.lives)
        self._add(event)

    def _add(self, event: Event) -> None:
        event.at_s = time.monotonic() - self._started_s
        event.life = self._pipeline.lives
        if len(self.result.events) < _EVENTS_AT_MOST:
            self.result.events.append(event)

    # -- on the run's own thread

    def _note(self, what: str, note: str) -> None:
        self._moved_s = time.monotonic()
        self._add(Event(what, note=note))

    def _until_caught_up(self) -> None:
        limit_s = self._limit_s()
        while not self._is_over_or_down():
            if self._stop.is_set():
                raise Stopped
            if time.monotonic() > self._limited_from_s + limit_s:
                self._give_up(f"it had not caught up after {limit_s:.0f} s")
                break
            if self.result.stuck:
                break
            self._wake.wait(_TURN_S)
            self._wake.clear()
        if self._clean is None and not self._settings.config:
            self.result.inner = passed(self._broker.admin_url)
        if not self.result.outputs:
            self.result.outputs = self._read()
        self._rows.require_read()

    def _read(self) -> tuple[Output, ...]:
        """The messages of the outputs, and the rows."""
        return self._topics.read(self._settings.outputs) + self._rows.read()

    def _limit_s(self) -> float:
        """The limit, derived from the duration without faults, so that slow does not count as
        stuck.
        """
        if self._clean is None:
            return self._settings.clean_limit_s
        limit_s = max(_LIMIT_AT_LEAST_S, _TIMES_CLEAN * self._clean.duration_s)
        return min(self._settings.run_limit_s or limit_s, limit_s)

    def _give_up(self, why: str) -> None:
        self.result.backlogs = self._topics.backlogs(self._settings.input)
        self.result.stuck = why

    def _is_over_or_down(self) -> bool:
        try:
            return self._is_over()
        except (OSError, HTTPException, PulsarException):
            if not self._has_crashed_within(_ENDS_WITHIN_S):
                self._check_broker()
                raise
            return False

    def _check_broker(self) -> None:
        """Raises RuntimeError if the broker has ended without a crash that was due."""
        try:
            code = self._broker.wait_until_ended(_ENDS_WITHIN_S)
        except TimeoutError:
            return
        raise RuntimeError(
            f"the broker of eos-check ended with code {code}, and eos-check had not killed it"
        )

    def _has_crashed_within(self, timeout_s: float = 0.0) -> bool:
        """Whether the broker has crashed at the fault point that is due."""
        if not (self._faults and is_inner(self._faults[0])):
            return False
        try:
            self._broker.wait_until_ended(timeout_s)
        except TimeoutError:
            return False
        self._broker.kill()  # frees what this process holds of it
        self._has_struck(self._faults.pop(0))
        return True

    def _arm(self) -> None:
        """Sets the crash in the broker if the next fault is at one of its fault points."""
        if self._faults and is_inner(self._faults[0]):
            crash_at(self._broker.admin_url, self._faults[0])

    def _is_over(self) -> bool:
        if self._has_crashed_within():
            return False
        if self._proxy.saw_tls:
            raise CannotRun(_WITH_TLS)
        if self._fallen is not None:
            self._start_again(self._fallen)
            return False
        with self._proxy.paused():
            if self._fallen is not None:
                return False
            return self._look()

    def _look(self) -> bool:
        """Whether the run is over. No process is killed meanwhile."""
        if self._pipeline.exit_code() is not None and not self._keep_alive():
            return False
        quiet_s = time.monotonic() - self._moved_s
        if quiet_s >= _ABANDONED_S:
            self._left_open.abort_abandoned(self._pipeline.lives, self._moved_s)
        if self._waves:
            self._publish_next(quiet_s)
            return False
        return quiet_s >= _QUIET_S and self._has_caught_up(quiet_s)

    def _start_again(self, fallen: Victim) -> None:
        self._fallen = None
        if fallen is Victim.BROKER:
            self._broker.start()
            self._note("BROKER UP", "started again on the same ports and directory")
        else:
            self._take_next(starting=True)
        self._arm()
        self._proxy.forward_to(self._broker.service_url, self._broker.kafka_bootstrap)
        if fallen is Victim.PIPELINE:
            self._start_pipeline()

    def _start_pipeline(self) -> None:
        self._left_open.pipeline_starts()
        try:
            self._pipeline.start()
        except OSError as error:
            raise CannotRun(f"{self._settings.command[0]} cannot be started: {error}") from None
        self._note("PIPELINE UP", f"start {self._pipeline.lives}")

    def _keep_alive(self) -> bool:
        """Handles a pipeline that ended by itself. True if it may stay down because its work is
        done.
        """
        code = self._pipeline.exit_code()
        if code == 0 and not self._waves and not any(self._judged_backlogs().values()):
            return True
        if code and not self._ever_struck():
            said = self._pipeline.log_tail()
            raise CannotRun(f"the pipeline ended with code {code} before any fault:\n{said}")
        self._ends += 1
        if self._ends > _ENDS_AT_MOST:
            self._give_up(
                f"it exited on its own {self._ends} times, the last time with code {code}"
            )
            return False
        self._pipeline.kill()  # kills processes that it left
        self._note("PIPELINE ENDED", f"on its own, with code {code}")
        if self._waves and (self._series is None or code == 0):
            self._publish_wave()
        self._stop.wait(_PAUSE_S)
        self._start_pipeline()
        return False

    def _ever_struck(self) -> bool:
        return self.result.struck > 0

    # -- the input

    def _publish_next(self, quiet_s: float) -> None:
        if not self.result.inputs:
            self._publish_first()
        elif self._series is not None:
            if self._is_ready_for_a_crash(quiet_s):
                self._publish_wave()
        elif quiet_s > _NEXT_WAVE_WITHIN_S or (
            quiet_s >= _QUIET_S and 0 in self._backlogs.answer(self._moved_s).values()
        ):
            self._publish_wave()

    def _publish_first(self) -> None:
        if self._backlogs.answer(self._moved_s):
            self.result.subscribed_first = True
        reads_from_start = self._clean is not None and not self._clean.subscribed_first
        since_s = time.monotonic() - self._started_s
        waited = since_s > self._settings.clean_limit_s * _SUBSCRIBED_WITHIN
        if self.result.subscribed_first or reads_from_start or waited:
            self._publish_wave()

    def _is_ready_for_a_crash(self, quiet_s: float) -> bool:
        """Whether the pipeline has recovered from the last crash, as far as this can be seen."""
        if self._seen_life < self._pipeline.lives or quiet_s < _QUIET_S:
            return False
        backlogs = self._backlogs.answer(self._moved_s)
        wanted = self._wanted() or backlogs.keys()
        if all(backlogs.get(name) == 0 for name in wanted):
            return quiet_s >= _RECOVERED_S or self._has_put_out_all()
        return quiet_s > _NEXT_WAVE_WITHIN_S + self._settle_s()

    def _has_put_out_all(self) -> bool:
        """Whether all outputs of the input so far are there."""
        if self._clean is None:
            return False
        ids = {each.id for each, _ in self.result.inputs}
        expected = outputs_of(ids, self._clean.outputs)
        found = outputs_of(ids, self._outputs.answer(self._moved_s))
        return bool(expected) and same(found, expected, self._settings.identity)

    def _take_next(self, *, starting: bool) -> None:
        """Takes the series' next crash, unless one is due."""
        if self._series is not None and not self._faults:
            fault = self._series.take(starting=starting)
            self._faults = [] if fault is None else [fault]
            self._had_input = False

    def _next_of_series(self, series: CrashesOfRun) -> None:
        """Chooses the series' next crash, and the input after it. When no crash is left, all
        remaining input is published together.
        """
        self._limited_from_s = time.monotonic()
        if self._faults and self._had_input:
            series.missed.append(self._faults.pop())
            crash_nowhere(self._broker.admin_url)
        is_last = len(self._waves) == 1
        if not self._faults and not is_last:
            self._counts.clear()
            self._take_next(starting=False)
            self._arm()
        if not self._faults:
            self._waves = [[each for wave in self._waves for each in wave]]
        self._had_input = True

    def _publish_wave(self) -> None:
        if self._series is not None:
            self._next_of_series(self._series)
        wave = self._waves.pop(0)
        self.result.before_last_input = len(self.result.passings[-1])
        positions = self._topics.publish(self._settings.input, wave)
        self.result.inputs += zip(wave, positions, strict=True)
        ids = wave[0].id if len(wave) == 1 else f"{wave[0].id} to {wave[-1].id}"
        self._note("INPUT", f"{ids} published to {self._settings.input}")

    # -- the end

    def _judged_backlogs(self) -> dict[str, int]:
        backlogs = self._topics.backlogs(self._settings.input)
        wanted = self._wanted()
        return {name: count for name, count in backlogs.items() if name in wanted} or backlogs

    def _wanted(self) -> frozenset[str]:
        return self._clean.acknowledged_by if self._clean is not None else frozenset()

    def _has_caught_up(self, quiet_s: float) -> bool:
        if self._seen_life < self._pipeline.lives and self._pipeline.exit_code() is None:
            return False  # it is still starting, and may have work left
        if self._has_timed_out(quiet_s):
            return False
        backlogs = self._backlogs.answer(self._moved_s)
        settled = quiet_s >= self._settle_s()
        wanted = self._wanted()
        if wanted:
            done = all(backlogs.get(name) == 0 for name in wanted)
        else:
            done = not backlogs or 0 in backlogs.values()
        if not done or (self._clean is None and not settled):
            return False
        if settled:
            self.result.outputs = self._read()
        elif self._clean is not None:
            outputs = self._outputs.answer(self._moved_s)
            if not same(outputs, self._clean.outputs, self._settings.identity):
                return False
            self.result.outputs = outputs
        self.result.backlogs = backlogs
        return True

    def _settle_s(self) -> float:
        pause_s = self._clean.pause_s if self._clean is not None else 0.0
        return max(self._settings.settle_s, _TIMES_PAUSE * pause_s)

    def _has_timed_out(self, quiet_s: float) -> bool:
        """Ends what the pipeline left open if it has stopped before all is done. What a transaction
        holds back is not lost: its timeout comes, and then the topics can be judged.
        """
        if self._clean is None or not self._left_open or quiet_s < self._settle_s():
            return False
        if not any(self._judged_backlogs().values()):  # then it is over, unless output is missing
            outputs = self._outputs.answer(self._moved_s)
            if same(outputs, self._clean.outputs, self._settings.identity):
                return False
        elif quiet_s < _FORGOTTEN_S:
            return False
        self._left_open.abort_all()
        return True
