"""Collects samples in the Prometheus format. Unknown values are omitted, not reported as 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import Metric

Labels = Mapping[str, str]


class Families:
    """Metrics by family, in the order of their first sample."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def gauge(self, name: str, help_text: str, labels: Labels, value: float | None) -> None:
        """Add a sample of a gauge; None adds nothing."""
        self._add("gauge", name, name, help_text, labels, value)

    def counter(self, name: str, help_text: str, labels: Labels, value: float | None) -> None:
        """Add a sample of a counter, whose name ends with _total; None adds nothing."""
        self._add("counter", name.removesuffix("_total"), name, help_text, labels, value)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics.values()

    def _add(
        self, kind: str, family: str, name: str, help_text: str, labels: Labels, value: float | None
    ) -> None:
        if value is None:
            return
        metric = self._metrics.get(family)
        if metric is None:
            metric = self._metrics[family] = Metric(family, help_text, kind)
        metric.add_sample(name, dict(labels), float(value))
