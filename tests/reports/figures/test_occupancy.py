from __future__ import annotations

import pytest

from reports.figures.facts import Occupancy
from reports.figures.policy.ledger import Cell, GpuSums, spans

BIN = 600
KNOWN = 0.8


def _spans(*bins: dict[str | None, Cell]) -> tuple[Occupancy, ...]:
    gpu = GpuSums(bins={index * BIN: cells for index, cells in enumerate(bins)})
    return spans(gpu, BIN, KNOWN)


def test_the_one_who_holds_most_is_the_main_user() -> None:
    (span,) = _spans({"alice": Cell(400, 300), "bob": Cell(200, 0)})

    assert (span.user, span.used_pct) == ("alice", pytest.approx(50))


def test_held_time_with_unknown_use_is_unknown_and_never_idle() -> None:
    (span,) = _spans({"alice": Cell(600, 0, 600)})

    assert span.used_pct is None


def test_the_use_is_that_of_the_known_time_where_most_of_it_is_known() -> None:
    (span,) = _spans({"alice": Cell(600, 250, 100)})

    assert span.used_pct == pytest.approx(50)


def test_a_span_of_several_bins_tells_their_mean_use() -> None:
    (span,) = _spans({"alice": Cell(600, 60)}, {"alice": Cell(600, 600)})

    assert (span.until, span.used_pct) == (2 * BIN, pytest.approx(55))


@pytest.mark.parametrize("second", [Cell(600, 0), Cell(600, 0, 600)], ids=["idle", "unknown"])
def test_bins_of_another_kind_are_a_span_of_their_own(second: Cell) -> None:
    assert len(_spans({"alice": Cell(600, 600)}, {"alice": second})) == 2


def test_a_bin_that_was_hardly_held_stays_blank() -> None:
    assert _spans({"alice": Cell(20, 20)}) == ()
