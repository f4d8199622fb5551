"""Each declared figure of a GPU appears at each door that its declaration names."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from monitor.facts.gpus import GpuField
from monitor.facts.readings import GPU_FIELDS
from monitor.gpus.api import GpuBody
from monitor.models import Gpu, GpuMinute, Sample
from monitor.pages import cards
from monitor.pages.metrics import Families, add_gpus
from monitor.usage.pages.content import gpu_panels
from monitor.usage.policy import ranges
from tests.builders import NOW, gpu, snapshot


def of(part: str) -> list[GpuField]:
    return [figure for figure in GPU_FIELDS if getattr(figure, part)]


def columns(model: type) -> set[str]:
    return {column.attname for column in model._meta.concrete_fields}  # type: ignore[attr-defined]


@pytest.mark.parametrize("figure", of("in_rest"), ids=lambda figure: figure.name)
def test_rest_has_the_figure_and_admits_that_it_is_unknown(figure: GpuField) -> None:
    assert GpuBody.model_fields[figure.name].annotation == figure.kind | None


@pytest.mark.parametrize("figure", of("gauge"), ids=lambda figure: figure.name)
def test_prometheus_has_the_figure_only_while_it_is_known(figure: GpuField) -> None:
    def exported(value: float | None) -> bool:
        families = Families()
        add_gpus(families, snapshot([replace(gpu(), **{figure.name: value})]), {})
        return figure.gauge is not None and figure.gauge.name in {
            family.name for family in families.collect()
        }

    assert (exported(5), exported(None)) == (True, False)


@pytest.mark.parametrize("figure", of("meter"), ids=lambda figure: figure.name)
def test_the_live_value_of_the_figure_stands_at_its_slot(figure: GpuField) -> None:
    (card,) = cards.cards([snapshot([replace(gpu(), **{figure.name: 7 * figure.scale})])])

    assert card.values[card.figures[figure.name].slot] == card.figures[figure.name].value == 7


@pytest.mark.parametrize("figure", of("is_sampled"), ids=lambda figure: figure.name)
def test_the_figure_is_stored_each_second(figure: GpuField) -> None:
    assert figure.name in columns(Sample)


@pytest.mark.parametrize("figure", of("rollup"), ids=lambda figure: figure.name)
def test_the_figure_is_rolled_up_and_has_a_chart(figure: GpuField) -> None:
    window = ranges.window({}, NOW, ranges.HistoryRange(7200, 90 * 86400), NOW.tzinfo)
    assert figure.rollup is not None

    assert figure.rollup.greatest in columns(GpuMinute)
    assert (figure.label, figure.unit_shown) in {
        (panel.title, panel.unit) for panel in gpu_panels(Gpu(), window, 85.0, {})
    }
