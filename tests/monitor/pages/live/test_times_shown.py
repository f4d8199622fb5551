from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.template import Context, Template

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 3, 2, 6, 5, 7, tzinfo=UTC), "06:05:07"),
        (datetime(2026, 3, 5, 6, 0, tzinfo=UTC), "5 Mar 06:00"),
        (datetime(2025, 12, 31, 6, 0, tzinfo=UTC), "31 Dec 2025 06:00"),
        (None, "–"),
    ],
)
def test_a_clock_time_of_another_day_says_which(moment: datetime | None, text: str) -> None:
    template = Template("{% load monitor_tags %}{% clock moment %}")
    shown = template.render(Context({"moment": moment, "now": NOW}))

    assert shown.removesuffix("</time>").endswith(text)


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 3, 2, 6, 5, 7, tzinfo=UTC), ">06:05"),
        (datetime(2026, 3, 5, 6, 0, tzinfo=UTC), ">5 Mar 06:00"),
        (datetime(2027, 3, 2, 6, 0, tzinfo=UTC), ">2 Mar 2027 06:00"),
        (None, "–"),
    ],
)
def test_an_estimate_of_another_year_says_which(moment: datetime | None, text: str) -> None:
    """Slurm expects a start in a year if the jobs before have no time limit."""
    template = Template("{% load monitor_tags %}{% minute moment %}")
    shown = template.render(Context({"moment": moment, "now": NOW}))

    assert shown.removesuffix("</time>").endswith(text)
