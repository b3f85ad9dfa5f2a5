"""`python -m pybroker.demo`: runs the demo. Exit code 0 if everything happened exactly once, 1 if
not.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from pybroker.client import PulsarException

try:
    from pybroker.demo.lives import Stage
    from pybroker.demo.processes import Broker, DriverFailed, log_of_broker
    from pybroker.demo.report import Verdict, say
    from pybroker.demo.scenes import play_flights, play_java_client, play_ledger
except ModuleNotFoundError as error:
    sys.exit(f"{error}; the demo runs Spark: pip install 'pybroker[demo]'")


def main() -> int:
    options = _parser().parse_args()
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        print("The demo runs Spark, which needs Java 17 or newer: install it", file=sys.stderr)
        return 2
    directory = Path(options.directory or tempfile.mkdtemp(prefix="pybroker-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    say(f"logs and data are in {directory}")
    verdict = Verdict()
    try:
        _play(options, directory, verdict)
    except DriverFailed as failure:
        verdict.claim(False, str(failure), failure.log)
    except (PulsarException, RuntimeError, OSError) as error:
        verdict.claim(False, f"the demo could not go on: {error}", log_of_broker(directory))
    verdict.print()
    if not verdict.holds:
        say(f"the logs of all processes are in {directory}")
    elif options.directory is None:
        shutil.rmtree(directory)
    return 0 if verdict.holds else 1


def _play(options: argparse.Namespace, directory: Path, verdict: Verdict) -> None:
    broker = Broker(directory)
    say(f"broker at {broker.service_url} and {broker.admin_url}")
    try:
        stage = Stage(directory, broker, verdict)
        play_ledger(stage, options.transfers)
        play_flights(stage, options.flights)
        play_java_client(stage, options.jars)
    finally:
        broker.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pybroker.demo", description=__doc__)
    parser.add_argument("--transfers", type=int, default=60_000, help="default: 60,000")
    parser.add_argument(
        "--flights", type=int, help="how many of the 336,776 flights to use (default: all)"
    )
    parser.add_argument(
        "--directory", help="keep logs and data here (default: a temporary directory)"
    )
    parser.add_argument(
        "--jars",
        type=Path,
        default=Path("build/java-client"),
        help="cache directory for the Java client",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
