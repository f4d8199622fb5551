"""Reads what /metrics answers, as Prometheus does."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from monitor.pages.metrics import Families


class Scrape:
    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}

    @property
    def samples(self) -> list[Sample]:
        return [sample for family in self.families.values() for sample in family.samples]

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of a metric's samples that have these labels."""
        return [
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def value(self, name: str, **labels: str) -> float:
        [value] = self.values(name, **labels)
        return value


def scrape_of(families: Families) -> Scrape:
    from prometheus_client.exposition import generate_latest

    return Scrape(generate_latest(families).decode())
