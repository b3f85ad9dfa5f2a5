"""The one list of what users may type and CI does not run, and why.

Everything else runs: blocks of documents as tests/tidy/test_documents_run.py says, targets of the
Makefile in tests/tidy/test_make_targets.py, containers as tests/tidy/test_containers_run.py says.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Blocks(NamedTuple):
    pattern: str  # every such block matches it
    reason: str


# Code blocks of documents, by the word in their comment `<!-- not run: WORD -->`.
BLOCKS: Final[Mapping[str, Blocks]] = {
    "docker": Blocks(
        r"^docker |PulsarContainer|pulsar\.Run\(",
        "needs a container engine; the containers' own commands run without one",
    ),
    "root": Blocks(
        r"/etc/systemd",
        "writes to /etc and /opt; tests/app/test_secure_profile.py runs the unit's command",
    ),
    "Prometheus": Blocks(r"^scrape_configs:", "is a file of Prometheus, which is not installed"),
    "Spark cluster": Blocks(
        r"spark-submit|venv-pack",
        "needs YARN or Kubernetes; tests/spark/test_spark_shipping.py ships packages to workers",
    ),
    "cluster": Blocks(
        r"\bzk:\w",
        "needs ZooKeeper on three machines; tests/bookkeeper/test_moved_entries.py and "
        "tests/moving move between directories and clusters",
    ),
}

TARGETS: Final[Mapping[str, str]] = {
    "drawings": "needs Graphviz, each version of which places a little differently; "
    "tests/tidy/test_internals.py compares each drawing with the source it was made from",
    "screenshots": "writes 44 pictures in Chromium, which takes minutes; "
    "tests/console/test_console_in_a_browser.py looks at the same pages",
}

# Services of the compose files that run other projects' images.
SERVICES: Final[Mapping[str, str]] = {
    "prometheus": "is Prometheus's image; tests/admin/test_openmetrics.py reads the same page",
    "grafana": "is Grafana's image; tests/admin/test_boards.py asks for what its boards ask for",
    "zookeeper": "is Apache Pulsar's image; tests/bookkeeper starts ZooKeeper from its jars",
    "metadata": "is Apache Pulsar's image; tests/bookkeeper formats the metadata by the jars",
    "bookie-1": "is Apache Pulsar's image; tests/bookkeeper starts bookies from their jars",
    "bookie-2": "is Apache Pulsar's image, as bookie-1",
    "bookie-3": "is Apache Pulsar's image, as bookie-1",
}
