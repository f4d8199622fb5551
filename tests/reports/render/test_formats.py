"""Every format shows the figures of the same report."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.auth.models import User
from openpyxl import load_workbook
from pypdf import PdfReader

from monitor.owners.policy import Viewer
from monitor.thresholds import rows as thresholds
from reports.figures.actions import build
from reports.figures.facts import Report
from reports.figures.policy import periods
from reports.render import wording as tables
from reports.render.actions import CSV_COLUMNS, FORMATS, render
from reports.render.wording import ALL_JOBS, ALL_USERS, cell
from tests.builders import NOW
from tests.reports.made import contended, ran, share_of_all, watched_gpu

pytestmark = pytest.mark.django_db
BEGIN = NOW - timedelta(hours=24)
LINE = "python (PID 12345, alice): 8.0 hours at >90% (expected quota: 30%)"
EVIL = '=cmd|"/C calc"!A1'


@pytest.fixture
def report(bob: User) -> Report:
    """The neighbour at 95 % for 8 of 24 hours, another user, and a job that waits."""
    gpu = watched_gpu(BEGIN, NOW)
    ran(gpu, BEGIN + timedelta(hours=3), 8)
    ran(gpu, BEGIN + timedelta(hours=12), 5, 20.0, user=EVIL, pid=2, start_ticks=8)
    share_of_all(30)
    contended(bob, BEGIN)
    period = periods.parse("24h", "", "", "UTC", NOW)
    return build(period, periods.scope("all"), Viewer("root", operator=True), NOW)


def figures(report: Report) -> list[str]:
    """The figures of the users and the sum, as they are printed."""
    rows = tables.users(report).rows
    return [cell(v) for row in rows for v in row[1:]] + [
        tables.reconciliation(report.totals.gpu_hours)
    ]


def test_json_has_the_figures(report: Report) -> None:
    body = json.loads(render(report, "json"))

    hours = body["totals"]["gpu_hours"]
    parts = ("used", "idle_held", "booked_empty", "free", "unknown")
    assert sum(hours[name] for name in parts) == pytest.approx(hours["capacity"], rel=1e-3)
    assert hours["used"] == pytest.approx(8.6)
    assert [row["user"] for row in body["users"]] == ["alice", EVIL, "bob"]
    assert body["users"][0]["gpu_hours_used"] == pytest.approx(7.6)
    assert body["violations"][0]["text"] == LINE


def test_csv_has_one_row_for_each_user_with_the_figures_of_json(report: Report) -> None:
    rows = list(csv.DictReader(io.StringIO(render(report, "csv").decode())))
    users = json.loads(render(report, "json"))["users"]

    assert len(rows) == len(users)
    for row, user in zip(rows, users, strict=True):
        for name in CSV_COLUMNS[1:-1]:
            assert row[name] == ("" if user[name] is None else str(user[name]))


def test_xlsx_has_the_same_tables(report: Report) -> None:
    book = load_workbook(io.BytesIO(render(report, "xlsx")))

    for table in tables.tables(report):
        rows = list(book[table.title[:31].replace(":", "-")].iter_rows(values_only=True))
        assert [v or "" for v in rows[0]] == list(table.head)
        note = [(), (table.note,)] if table.note else []
        assert [tuple(filter(None, row)) for row in rows[1 + len(table.rows) :]] == note
        for row, expected in zip(rows[1:], table.rows, strict=False):
            assert [_same(a, b) for a, b in zip(row, expected, strict=True)] == [True] * len(row)
    cover = [str(row[0]) for row in book["Report"].iter_rows(values_only=True)]
    assert f"- {LINE}" in cover


def _same(read: Any, written: Any) -> bool:
    if isinstance(written, datetime):
        return bool(read == tables.cell(written))
    if isinstance(written, float):
        return bool(read == pytest.approx(written))
    return (read or "") == (written or "")


def of_scope(scope: str) -> Report:
    ran(watched_gpu(BEGIN, NOW), BEGIN + timedelta(hours=3), 8)
    period = periods.parse("24h", "", "", "UTC", NOW)
    return build(period, periods.scope(scope), Viewer("root", operator=True), NOW)


def test_the_report_of_a_user_says_in_each_format_which_figures_are_of_all_users(db: None) -> None:
    report = of_scope("user:alice")
    wide = ("timeline", "heat", "balance")
    book = load_workbook(io.BytesIO(render(report, "xlsx")))
    pdf = PdfReader(io.BytesIO(render(report, "pdf")))
    text = " ".join(" ".join(page.extract_text() for page in pdf.pages).split())

    for table in tables.tables(report):
        last = [cell.value for cell in book[table.title[:31].replace(":", "-")]["A"]][-1]
        assert str(last).startswith(ALL_USERS) == (table.key in wide)
    # The tables of the occupancy, the week and the GPU time; two of them as pictures.
    assert render(report, "html").decode().count(ALL_USERS) == 5
    assert text.count(ALL_USERS) == 5
    assert ALL_USERS in render(report, "text").decode()
    fields = json.loads(render(report, "json"))["wider_than_scope"]
    assert [fields[name] for name in ("totals.gpu_hours", "gpus", "heat")] == [f"{ALL_USERS}."] * 3


def test_the_report_of_a_gpu_says_that_its_queue_is_of_all_gpus(db: None) -> None:
    gpu = of_scope("all").gpus[0].uuid
    period = periods.parse("24h", "", "", "UTC", NOW)
    report = build(period, periods.scope(f"gpu:{gpu}"), Viewer("root", operator=True), NOW)

    fields = json.loads(render(report, "json"))["wider_than_scope"]
    assert {name for name, note in fields.items() if note == ALL_JOBS} == {
        "queue",
        "blockers",
        "waits",
    }
    assert ALL_JOBS in render(report, "html").decode()


@pytest.mark.parametrize("format", ["html", "json", "text"])
def test_the_report_of_everything_needs_no_such_notes(report: Report, format: str) -> None:
    content = render(report, format).decode()

    assert ALL_USERS not in content
    assert ALL_JOBS not in content


def test_prices_and_emissions_are_shown_once_they_are_set(report: Report) -> None:
    assert "Costs" not in render(report, "text").decode()
    prices = {"price_per_kwh": 0.5, "price_per_gpu_hour": 2.0, "carbon_g_per_kwh": 400.0}
    thresholds.change("reports", prices, by="root", now=NOW)
    # 13 GPU-hours held, of which 4.4 were not used; 24 h with 100 W.
    costs = "Costs: energy 1.20 EUR, GPU time 26.00 EUR, not used"
    emissions = "Emissions: 1.0 kg CO2"

    priced = build(report.period, report.scope, Viewer("root", operator=True), NOW)
    pdf = PdfReader(io.BytesIO(render(priced, "pdf")))
    book = load_workbook(io.BytesIO(render(priced, "xlsx")))
    texts = {
        "text": render(priced, "text").decode(),
        "html": render(priced, "html").decode(),
        "pdf": " ".join(page.extract_text() for page in pdf.pages),
        "xlsx": "\n".join(str(row[0]) for row in book["Report"].iter_rows(values_only=True)),
    }

    for text in texts.values():
        assert costs in text
        assert emissions in text
    amounts = json.loads(render(priced, "json"))["totals"]["costs"]
    assert (amounts["energy"], amounts["gpu_time"]) == (pytest.approx(1.2), pytest.approx(26))
    assert amounts["co2_kg"] == pytest.approx(0.96)


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.texts += [data.strip()] if data.strip() else []


def test_html_has_the_same_figures_and_needs_no_other_file(report: Report) -> None:
    page = render(report, "html").decode()
    reader = _Cells()
    reader.feed(page)

    assert [text for text in figures(report) if text not in reader.texts] == []
    assert LINE in reader.texts
    assert re.findall(r"<(?:script|link|img)", page) == []
    assert "<h1>GPU Utilization Report (Last 24 hours)</h1>" in page


def test_pdf_has_the_same_figures(report: Report) -> None:
    pages = PdfReader(io.BytesIO(render(report, "pdf"))).pages
    text = " ".join(" ".join(page.extract_text() for page in pages).split())

    assert [figure for figure in figures(report) if figure not in text] == []
    assert LINE in text


def test_text_has_the_same_figures_in_the_shape_of_the_specification(report: Report) -> None:
    lines = render(report, "text").decode().splitlines()

    assert lines[0] == "GPU Utilization Report (Last 24 hours)"
    at = lines.index("Fair Share Violations:")
    assert lines[at + 1] == f"- {LINE}"
    assert "Recommendation: Contact owners or adjust quotas" in lines[at:]
    assert [f for f in figures(report) if not any(f in line for line in lines)] == []


@pytest.mark.parametrize("format", FORMATS)
def test_a_report_without_data_says_so_in_each_format(db: None, format: str) -> None:
    period = periods.parse("24h", "", "", "UTC", NOW)
    empty = build(period, periods.scope("all"), Viewer("root", operator=True), NOW)

    content = render(empty, format)

    assert content
    if format in ("json", "html", "text"):
        assert b"no readings of this period" in content


def _csv_cells(report: Report) -> Iterator[str]:
    for row in csv.reader(io.StringIO(render(report, "csv").decode())):
        yield from row


def test_no_cell_of_a_spreadsheet_is_a_formula(report: Report) -> None:
    book = load_workbook(io.BytesIO(render(report, "xlsx")))

    assert f"'{EVIL}" in _csv_cells(report)
    assert not [text for text in _csv_cells(report) if text.startswith(("=", "+", "@"))]
    cells = [c for sheet in book for row in sheet.iter_rows() for c in row]
    assert {c.data_type for c in cells if c.value == EVIL} == {"s"}
    assert not [c for c in cells if c.data_type == "f"]


def test_names_are_escaped_in_html_and_are_no_markup_in_pdf(report: Report) -> None:
    html = render(report, "html").decode()

    assert EVIL not in html
    assert "&quot;/C calc&quot;" in html
    assert b"%PDF" in render(report, "pdf")[:8]
