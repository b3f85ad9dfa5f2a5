"""The run without faults, with which the other runs are compared. Its output must not be empty."""

import threading
from typing import Final

from pybroker.eos_check.faults import NO_FAULT
from pybroker.eos_check.rows import ROWS
from pybroker.eos_check.run import run
from pybroker.eos_check.run_result import CannotRun, RunResult
from pybroker.eos_check.settings import Settings

_PLACES: Final = (
    "Does the command use {service_url} and {input}, or PULSAR_SERVICE_URL and EOS_INPUT?"
)
_KAFKA_PLACES: Final = (
    "Does the command use {kafka_bootstrap} and {input}, or KAFKA_BOOTSTRAP_SERVERS and EOS_INPUT? "
    "A Kafka client that only reads, and keeps its offsets elsewhere, takes no step at which it "
    "could be crashed."
)


def clean_run(settings: Settings, stop: threading.Event) -> RunResult:
    """The run without faults. Raises CannotRun if nothing can be judged by it."""
    result = run(settings, NO_FAULT, None, stop)
    places = _KAFKA_PLACES if settings.kafka else _PLACES
    if result.stuck and not result.backlogs:
        raise CannotRun(
            f"without any fault, {result.stuck}, and {settings.input} has no subscription. "
            f"{places} If it is slow to start, raise --run-limit.\n{result.log}"
        )
    if result.stuck:
        raise CannotRun(
            f"without any fault, {result.stuck}: backlogs {result.backlogs}. "
            f"Raise --run-limit if it is slow.\n{result.log}"
        )
    if not result.outputs and not result.backlogs:
        raise CannotRun(
            f"without any fault, the command ended with code 0, nothing came out on "
            f"{', '.join(settings.outputs)}, and {settings.input} has no subscription. {places}\n"
            f"{result.log}"
        )
    if not result.outputs:
        raise CannotRun(
            f"without any fault, nothing came out on {', '.join(settings.outputs)}: check the "
            f"topics' names and --payload.\n{result.log}"
        )
    if settings.rows and not any(each.topic == ROWS for each in result.outputs):
        raise CannotRun(
            "without any fault, the command of --rows printed nothing, so no row would be "
            f"compared: does it read the pipeline's database?\n{result.log}"
        )
    return result
