"""All metrics, by name."""

from collections.abc import Mapping
from typing import Final

from pybroker.admin.metrics import broker, kafka, process, scalable, storage, topics, transactions
from pybroker.base.metrics import Metric

_AREAS: Final = (broker, topics, scalable, storage, transactions, kafka, process)
METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric for area in _AREAS for metric in area.ROWS
}
