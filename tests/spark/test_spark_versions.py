"""Other versions of Spark, Arrow, pandas and so on than the installed ones: each set in its own
environment, which is created once. And other Java versions, if the machine has any.
"""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import Final

import pytest
from environments import (
    ALLOWED_WITH_SPARK,
    FOR_SPARK_TESTS,
    environment,
    oldest,
    run_tests,
    with_spark,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

JAVAS_OF_MACOS: Final = Path("/Library/Java/JavaVirtualMachines")

# Models of Spark, which are the same for all versions; and reports that PySpark has since 4.2.
LEFT_OUT: Final = ("test_spark_model.py", "test_spark_sink_model.py", "test_spark_progress.py")
# These tests need several batches; before 4.2 there is only one.
OF_SEVERAL_BATCHES: Final = (
    "test_batches_follow_each_other_without_a_gap",
    "test_a_query_without_its_checkpoint_goes_on_at_the_cursor",
    "test_a_stateful_query_that_dies_behind_every_commit_keeps_its_state",
    "test_each_message_once_though_the_broker_dies_before_a_commit",
    "test_sqlite_has_each_row_once_though_the_broker_dies_before_a_commit",
    "test_a_jdbc_database_has_each_row_once_though_the_broker_dies_before_a_commit",
    "test_exactly_once_across_splits_and_merges",
    "test_a_sorted_frame_is_published_in_its_order",
    # Before 4.2 the first batch takes everything, because it may be the only one.
    "test_without_options_a_trigger_is_limited",
    "test_an_entry_that_is_larger_than_the_limit_is_read_alone",
)
SMOKE: Final = (
    "test_a_topic_is_a_frame_with_the_connectors_columns",
    "test_filters_on_metadata_choose_what_is_read",
    "test_a_stream_goes_on_from_its_checkpoint",
    "test_available_now_reads_all_there_is_whatever_the_limits",
    "test_nothing_of_a_job_that_fails_is_seen",
    "test_a_stream_of_files_is_written_once_over_its_restarts",
)


def java_homes() -> dict[str, str]:
    """Java homes by version, from 17 on. The default Java is included only if there is no other."""
    # GitHub's machines set these variables; the folders are those of Linux and macOS.
    named = [home for name, home in sorted(os.environ.items()) if name.startswith("JAVA_HOME_")]
    folders = [*Path("/usr/lib/jvm").glob("*"), *JAVAS_OF_MACOS.glob("*/Contents/Home")]
    homes = {java_version(home): str(home) for home in (*map(Path, named), *sorted(folders))}
    default = Path(os.environ.get("JAVA_HOME") or Path(str(which("java"))).resolve().parents[1])
    others = {version: home for version, home in homes.items() if version >= 17}
    others.pop(java_version(default), None)
    return {f"java-{version}": home for version, home in others.items()} or {"java": str(default)}


def java_version(home: Path) -> int:
    """The major version; 0 if there is no Java in `home`."""
    with suppress(OSError):
        told = re.search(r'^JAVA_VERSION="(\d+)', (home / "release").read_text(), re.MULTILINE)
        return int(told[1]) if told else 0
    return 0


def test_the_oldest_versions_that_are_allowed_do_the_same():
    python = environment("oldest", [*oldest(ALLOWED_WITH_SPARK), *FOR_SPARK_TESTS])
    ignored = [f"--ignore=tests/spark/{each}" for each in LEFT_OUT]
    left_out = f"not ({' or '.join(OF_SEVERAL_BATCHES)})"
    run_tests(python, "tests/spark", "-m", "not slow", *ignored, "-k", left_out)


@pytest.mark.parametrize("version", ["4.1.*"])
def test_a_version_between_reads_and_writes(version):
    python = environment(version.rstrip(".*"), with_spark(version))
    run_tests(python, "tests/spark", "-m", "spark and not slow", "-k", " or ".join(SMOKE))


@pytest.mark.parametrize("java_home", java_homes().values(), ids=java_homes().keys())
def test_another_java_reads_and_writes(java_home):
    smoke = ("-k", " or ".join(SMOKE))
    run_tests(
        Path(sys.executable), "tests/spark", "-m", "spark and not slow", *smoke, JAVA_HOME=java_home
    )
