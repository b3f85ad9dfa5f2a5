"""docs/metrics.md lists exactly the existing metrics."""

from generate_metrics_document import DOCUMENT, document


def test_the_page_has_the_broker_s_table() -> None:
    assert DOCUMENT.read_text() == document(), "run `make metrics`"
