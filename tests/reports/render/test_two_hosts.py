"""Reports over two hosts: their parts add up, and each host has figures of its own in each format.

The same tests run on PostgreSQL, which hosts share (tests/service/test_postgres.py).
"""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from typing import Any

import pytest
from openpyxl import load_workbook
from pypdf import PdfReader

from monitor.owners.policy import Viewer
from reports.figures.actions import build
from reports.figures.facts import Report
from reports.figures.policy import periods
from reports.models import ReportSchedule, StoredReport
from reports.render import wording as tables
from reports.render.actions import render
from reports.schedule import step
from tests.builders import NOW
from tests.reports.made import ran, watched_gpu

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
BEGIN = NOW - timedelta(hours=72)
PARTS = ("capacity", "used", "idle_held", "booked_empty", "free", "unknown")
HOSTS = ("near", "far")


@pytest.fixture(autouse=True)
def hosts() -> None:
    """near has one GPU, far two. Alice uses both hosts, bob only far, on each day the same."""
    near = watched_gpu(BEGIN, NOW, host="near")
    first, second = (watched_gpu(BEGIN, NOW, index, host="far") for index in (1, 2))
    for day in range(3):
        at = BEGIN + timedelta(days=day)
        identity = {"pid": 100 + day, "start_ticks": 100 + day}
        ran(near, at, 8, 95.0, host="near", **identity)
        ran(first, at, 12, 50.0, host="far", **identity)
        ran(second, at, 6, None, host="far", user="bob", **identity)


def report(scope: str) -> Report:
    period = periods.parse("24h", "", "", "UTC", NOW)
    return build(period, periods.scope(scope), Viewer("root", operator=True), NOW)


def body(scope: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(render(report(scope), "json"))
    return made


def users(made: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """GPU-hours held and used by user."""
    return {row["user"]: (row["gpu_hours_held"], row["gpu_hours_used"]) for row in made["users"]}


def test_the_parts_of_both_hosts_add_up_to_those_of_all_hosts() -> None:
    near, far, joint = (
        body(scope)["totals"]["gpu_hours"] for scope in ("host:near", "host:far", "all")
    )

    assert (near["capacity"], far["capacity"]) == (pytest.approx(24), pytest.approx(48))
    assert far["unknown"] == pytest.approx(6)
    for part in PARTS:
        assert joint[part] == pytest.approx(near[part] + far[part]), part
    for hours in (near, far, joint):
        assert sum(hours[part] for part in PARTS[1:]) == pytest.approx(hours["capacity"], rel=1e-3)
    assert all(report(scope).totals.gpu_hours.is_reconciled for scope in ("host:near", "host:far"))


def test_the_hours_of_each_user_are_those_of_both_hosts() -> None:
    near, far, joint = (users(body(scope)) for scope in ("host:near", "host:far", "all"))

    assert near.keys() == {"alice"}
    assert near["alice"] == pytest.approx((8.0, 7.6))
    assert far["alice"] == pytest.approx((12.0, 6.0))
    assert joint["alice"] == pytest.approx((20.0, 13.6))
    assert far["bob"][0] == joint["bob"][0] == 6.0


@pytest.mark.parametrize("scope", ["all", "host:near", "host:far"])
def test_csv_xlsx_and_pdf_have_the_figures_of_their_hosts(scope: str) -> None:
    made = report(scope)
    expected = {name: held for name, (held, _) in users(body(scope)).items()}

    rows = csv.DictReader(io.StringIO(render(made, "csv").decode()))
    assert {row["user"]: float(row["gpu_hours_held"]) for row in rows} == expected
    book = load_workbook(io.BytesIO(render(made, "xlsx")))
    table = tables.users(made)
    sheet = book[table.title[:31].replace(":", "-")]
    assert [row[0] for row in sheet.iter_rows(min_row=2, values_only=True)] == list(expected)
    pages = PdfReader(io.BytesIO(render(made, "pdf"))).pages
    text = " ".join(" ".join(page.extract_text() for page in pages).split())
    assert tables.reconciliation(made.totals.gpu_hours) in text


def test_a_schedule_for_each_host_stores_the_figures_of_that_host() -> None:
    for name in HOSTS:
        ReportSchedule.objects.create(name=name, every="day", hour=0, scope=f"host:{name}")

    assert step.make_due(NOW) == 2

    hours = {}
    for name in HOSTS:
        stored = StoredReport.objects.get(schedule__name=name)
        file = json.loads(bytes(stored.files.get(format="json").content))
        hours[name] = (file["totals"]["gpu_hours"]["capacity"], set(users(file)))
    assert hours == {
        "near": (pytest.approx(24), {"alice"}),
        "far": (pytest.approx(48), {"alice", "bob"}),
    }
