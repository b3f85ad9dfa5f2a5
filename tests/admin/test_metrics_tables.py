"""The metrics of a busy broker against Apache Pulsar's, dashboards' queries, and our own table."""

import csv
from fnmatch import fnmatch
from pathlib import Path

import pytest
from scraped import Scrape

from pybroker.admin.metrics.table import METRICS

HERE = Path(__file__).parent


def read(name: str) -> list[dict[str, str]]:
    with (HERE / name).open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_prometheus_reads_all_of_it(scraped: Scrape) -> None:
    samples = sum(not line.startswith("#") for line in scraped.text.splitlines())
    assert sum(map(len, scraped.samples.values())) == samples > 300


def test_apache_pulsar_s_metrics_are_there_or_it_is_said_why_not(scraped: Scrape) -> None:
    without = {row["metric"]: row["reason"] for row in read("apache_metrics_without.tsv")}
    assert all(without.values())
    used, missing = set[str](), []
    for row in read("apache_metrics.tsv"):
        patterns = [pattern for pattern in without if fnmatch(row["metric"], pattern)]
        used.update(patterns)
        if (row["metric"] in scraped.samples) == bool(patterns):
            missing.append(row["metric"])
    assert not missing, "neither there nor excused, or both"
    assert used == set(without)


def test_apache_pulsar_s_labels_are_there(scraped: Scrape) -> None:
    lacking = {
        (row["metric"], label)
        for row in read("apache_metrics.tsv")
        if row["metric"] in scraped.samples
        for label in set(row["labels"].split(",")) - scraped.labels_of(row["metric"])
    }
    assert lacking == {("pulsar_version_info", "commit")}, "a release has a version, and no commit"


def answers(scraped: Scrape, metric: str, wanted: str) -> bool:
    """Whether the scrape has a sample with these labels (`name` or `name=value`, by comma)."""
    if metric == "up":  # Prometheus adds it for each target
        return True
    labels = [label.partition("=") for label in wanted.split(",") if label]
    return any(
        all(name in sample and value in ("", sample[name]) for name, _, value in labels)
        for sample in scraped.samples.get(metric, ())
    )


@pytest.mark.parametrize("board", sorted({row["board"] for row in read("board_queries.tsv")}))
def test_a_dashboard_finds_what_it_queries(scraped: Scrape, board: str) -> None:
    wrong = [
        row
        for row in read("board_queries.tsv")
        if row["board"] == board
        and row["metric"] != "up"
        and answers(scraped, row["metric"], row["labels"]) == bool(row["reason"])
    ]
    assert not wrong, "neither answered nor excused, or both"


def test_the_document_counts_the_panels_that_have_data() -> None:
    panels: dict[str, dict[str, bool]] = {}
    for row in read("board_queries.tsv"):
        if row["panel"] != "(variables)":
            of_board = panels.setdefault(row["board"], {})
            of_board[row["panel"]] = of_board.get(row["panel"], True) and not row["reason"]
    document = (HERE.parents[1] / "docs/metrics.md").read_text()
    for board, of_board in panels.items():
        assert f"| {board} | {len(of_board)} | {sum(of_board.values())} |" in document
    total = sum(map(len, panels.values()))
    assert f"{sum(sum(each.values()) for each in panels.values())} of {total} panels" in document


def test_each_sample_has_the_labels_of_the_table(scraped: Scrape) -> None:
    wrong = []
    for name, samples in scraped.samples.items():
        metric = METRICS.get(name) or METRICS[name.rpartition("_")[0]]
        wanted = {"cluster", *metric.labels}
        if name != metric.name:
            wanted -= {"quantile"}
            wanted |= {"le"} if name.endswith("_bucket") else set()
        wrong += [(name, labels) for labels in samples if set(labels) != wanted]
    assert not wrong


def test_each_metric_of_the_table_is_in_the_scrape(scraped: Scrape) -> None:
    shown = {line.split()[2] for line in scraped.text.splitlines() if line.startswith("# TYPE")}
    assert set(METRICS) == shown


def test_what_is_counted_for_ever_is_named_so() -> None:
    """OpenMetrics requires it, and Prometheus' own parser renames others."""
    assert not [m.name for m in METRICS.values() if m.kind == "counter" and m.name[-6:] != "_total"]


def test_sizes_and_latencies_are_those_of_what_was_written(scraped: Scrape) -> None:
    values = scraped.values
    sizes = {
        name.removeprefix("pulsar_entry_size_"): value
        for name, value in values.items()
        if name.startswith("pulsar_entry_size_") and value
    }
    assert sizes["le_2_kb"] == sizes["le_16_kb"] == sizes["overflow"] == sizes["le_overflow"] == 1
    assert sizes["count"] == 10
    assert sizes["sum"] > 2_011_010
    written = [v for n, v in values.items() if n.startswith("pulsar_storage_write_latency_le_")]
    assert sum(written) == values["pulsar_storage_write_latency_count"] == 10
    total_ms = values["pulsar_storage_write_latency_sum"]
    assert total_ms >= values["pulsar_storage_ledger_write_latency_sum"] > 0
    assert values["pybroker_fsync_seconds_count"] > 0
