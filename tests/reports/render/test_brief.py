"""The one-page form of a report, which is attached to an alert."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from pypdf import PdfReader

from monitor.owners.policy import Viewer
from reports.figures.actions import build
from reports.figures.facts import Report
from reports.figures.policy import periods
from reports.render.actions import render
from reports.render.wording import Cover, cell
from tests.builders import NOW
from tests.reports.made import contended, ran, share_of_all, watched_gpu

pytestmark = pytest.mark.django_db
BEGIN = NOW - timedelta(hours=24)
COVER = Cover("alice's python violates the fair share on GPU 0 of gpubox", "Detected GPU hog.")


def report(scope: str = "all") -> Report:
    period = periods.parse("24h", "", "", "UTC", NOW)
    return build(period, periods.scope(scope), Viewer("root", operator=True), NOW)


def pages(made: Report, cover: Cover = COVER) -> list[str]:
    document = PdfReader(io.BytesIO(render(made, "pdf", cover)))
    return [page.extract_text() for page in document.pages]


def test_the_page_names_the_case_the_violation_and_what_to_do(bob: User) -> None:
    share_of_all(30)
    contended(bob, BEGIN)
    ran(watched_gpu(BEGIN, NOW), BEGIN, 8)
    made = report("user:alice")
    (words,) = pages(made)
    assert COVER.title in words
    assert COVER.text in words
    assert "python (PID 12345, alice): 8.0 hours at >90% (expected quota: 30%)" in words
    assert "Contact alice" in words


def test_the_longest_names_and_a_large_machine_stay_on_one_page() -> None:
    long = "Wolfeschlegelsteinhausenbergerdorff" * 4
    for index in range(16):
        gpu = watched_gpu(BEGIN, NOW, index)
        for number in range(3):
            ran(
                gpu, BEGIN + timedelta(hours=8 * number), 8, user=f"{long}{index % 9}",
                program=f"{long[:100]}{number}", pid=100 * index + number, start_ticks=number,
            )  # fmt: skip
    cover = Cover(f"{long}'s {long} violates the fair share on GPU 0 of {long}", "hog " * 500)
    assert len(pages(report(), cover)) == 1


@pytest.mark.parametrize("format", ["html", "text"])
def test_html_and_text_have_the_same_figures_and_no_further_tables(format: str) -> None:
    ran(watched_gpu(BEGIN, NOW), BEGIN, 8)
    made = report("user:alice")
    words = render(made, format, COVER).decode()
    assert COVER.text in words
    assert cell(made.users[0].held) in words
    assert "Energy by GPU" not in words


def test_the_figures_to_calculate_with_stay_complete() -> None:
    ran(watched_gpu(BEGIN, NOW), BEGIN, 8)
    made = report("user:alice")
    assert all(render(made, name, COVER) == render(made, name) for name in ("json", "csv"))
