"""Names that other users choose, in files, pages and terminals: text, and nothing else."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from datetime import timedelta

import pytest
from openpyxl import load_workbook
from pypdf import PdfReader

from gpucoord_site.cli import tables
from gpucoord_site.cli.follow import ForeignOutput
from monitor.owners.policy import Viewer
from reports.figures.actions import build
from reports.figures.facts import Report
from reports.figures.policy import periods
from reports.render.actions import harmless, render
from tests.builders import NOW
from tests.reports.made import ran, watched_gpu

pytestmark = [pytest.mark.hostile, pytest.mark.django_db]
BEGIN = NOW - timedelta(hours=24)
FORMULAS = ["=1+1", "+1", "-1+2", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1+1", "＋1", "－1", "＠A"]
TYPST = '#read("/etc/passwd") $x$ *bold* #sys.inputs <a> @ref'
SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"
CONTROL = "\x1b]0;title\x07\x1b[2J\x1b[8mhidden\x9b31m\r\b\u202eevil"
NAMES = ["=1+1", "+cmd|x", "-2+3", "@SUM(A1)", TYPST, SCRIPT]


@pytest.fixture
def report() -> Report:
    """Each name has used the GPU for an hour."""
    gpu = watched_gpu(BEGIN, NOW)
    for number, name in enumerate(NAMES):
        begin = BEGIN + timedelta(hours=number)
        ran(gpu, begin, 1, 20.0, user=name, pid=number + 2, start_ticks=number + 8)
    period = periods.parse("24h", "", "", "UTC", NOW)
    return build(period, periods.scope("all"), Viewer("root", operator=True), NOW)


@pytest.mark.parametrize("text", FORMULAS)
def test_a_cell_of_a_csv_never_begins_like_a_formula(text: str) -> None:
    assert harmless(text) == f"'{text}"


def test_csv_and_xlsx_have_all_names_as_texts(report: Report) -> None:
    rows = csv.reader(io.StringIO(render(report, "csv").decode()))
    cells = [cell for row in rows for cell in row]
    book = load_workbook(io.BytesIO(render(report, "xlsx")))
    values = [cell for sheet in book for row in sheet.iter_rows() for cell in row]

    assert {f"'{name}" for name in NAMES[:4]} < set(cells)
    assert not [cell for cell in cells if cell[:1] in "=+@" and cell]
    assert set(NAMES) <= {cell.value for cell in values}
    assert not [cell for cell in values if cell.data_type == "f" or cell.hyperlink]


def test_markup_of_typst_is_printed_as_it_is(report: Report) -> None:
    text = "".join(
        page.extract_text() for page in PdfReader(io.BytesIO(render(report, "pdf"))).pages
    )

    assert "#read(" in text.replace("\n", "")
    assert "root:" not in text


def test_html_of_a_report_has_no_element_of_a_name(report: Report) -> None:
    html = render(report, "html").decode()

    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert "&lt;script&gt;alert" in html


def test_tables_of_commands_pass_on_no_control_sequence() -> None:
    lines = "\n".join(tables.table(["NAME"], [[CONTROL]], 200))

    assert not [c for c in lines if not c.isprintable() and c != "\n"]
    assert "hidden" in lines


def test_output_of_another_users_job_has_colours_only() -> None:
    foreign = ForeignOutput()
    pieces = [bytes([byte]) for byte in f"\x1b[31mred{CONTROL}\n".encode()]
    shown = b"".join([*map(foreign.feed, pieces), foreign.end()]).decode()

    assert shown.startswith("\x1b[31mred")
    assert shown.count("\x1b") == 1
    assert not set(shown) & {"\x07", "\x08", "\x9b", "\u202e", "\r"}


@pytest.mark.parametrize("sequence", ["8", "0;8", "1;08;31", "38;5;1;8", "38;2;1;2;3;8", ";8"])
def test_output_of_another_users_job_hides_no_text(sequence: str) -> None:
    shown = ForeignOutput().feed(f"\x1b[{sequence}mhidden\n".encode())

    assert b"\x1b" not in shown


@pytest.mark.parametrize("colour", ["31", "1;31", "38;5;8", "48;2;8;8;8", "38:5:8", "0", ""])
def test_output_of_another_users_job_keeps_its_colours(colour: str) -> None:
    assert ForeignOutput().feed(f"\x1b[{colour}mred\n".encode()).startswith(b"\x1b[")


def test_a_word_of_a_command_line_is_not_repeated_to_the_terminal() -> None:
    """Scripts pass on words that other users have chosen."""
    done = subprocess.run(
        [sys.executable, "-c", "from gpucoord_site.cli.main import main; exit(main())", CONTROL],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode != 0
    assert "\x1b" not in done.stdout + done.stderr
