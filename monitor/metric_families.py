"""Metrics as Prometheus takes them: what is not known has no sample, never a 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import Metric

Labels = Mapping[str, str]


class Families:
    """Collects samples, each under its metric, in the order in which they came."""

    def __init__(self) -> None:
        self._made: dict[str, Metric] = {}

    def gauge(self, name: str, what: str, labels: Labels, value: float | None) -> None:
        """A value that goes up and down; None adds no sample."""
        self._add("gauge", name, name, what, labels, value)

    def counter(self, name: str, what: str, labels: Labels, value: float | None) -> None:
        """A value that only grows; its name ends with _total."""
        self._add("counter", name.removesuffix("_total"), name, what, labels, value)

    def collect(self) -> Iterator[Metric]:
        yield from self._made.values()

    def _add(
        self, kind: str, family: str, name: str, what: str, labels: Labels, value: float | None
    ) -> None:
        if value is None:
            return
        metric = self._made.get(family)
        if metric is None:
            metric = self._made[family] = Metric(family, what, kind)
        metric.add_sample(name, dict(labels), float(value))
