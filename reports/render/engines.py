"""PDF and PNG by typst: data as JSON beside a checked-in template, never markup made of texts."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from reports.figures.facts import Table
from reports.render.wording.tables import cell

TEMPLATE = Path(__file__).with_name("report.typ")
# A user name of 32 characters and a UUID of a GPU are not cut.
_LONG_WORD = re.compile(r"(\S{43})\S{2,}")
PIXELS_PER_INCH = 144
HOW_TO_GET = "PDF needs typst. Where gpucoord is installed, run: pip install 'gpucoord[pdf]'"


class NoTypst(Exception):
    """The extra `pdf` is not installed; the text says how to get it."""


def is_available() -> bool:
    return find_spec("typst") is not None


def _with_short_words(value: Any) -> Any:
    """All texts without words that are wider than a column; pictures stay as they are."""
    if isinstance(value, str):
        return value if value.startswith("<svg") else _LONG_WORD.sub(r"\1…", value)
    if isinstance(value, list | tuple):
        return [_with_short_words(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_short_words(item) for key, item in value.items()}
    return value


def png(svg: str, width_pt: int) -> bytes:
    """The picture at two pixels for each point, for programs that show no SVG."""
    try:
        import typst
    except ImportError:
        raise NoTypst(HOW_TO_GET) from None
    page = (
        "#set page(width: auto, height: auto, margin: 0pt)\n"
        f"#image(bytes(sys.inputs.svg), width: {width_pt}pt)"
    )
    return bytes(
        typst.compile(page.encode(), sys_inputs={"svg": svg}, format="png", ppi=PIXELS_PER_INCH)
    )


def document(data: dict[str, Any]) -> bytes:
    """The PDF of this data; its fields are those that the template reads."""
    try:
        import typst
    except ImportError:
        raise NoTypst(HOW_TO_GET) from None
    report = json.dumps(_with_short_words(data))
    return bytes(typst.compile(TEMPLATE.read_bytes(), sys_inputs={"report": report}))


# XLSX: one sheet for each table. Texts stay texts, and rows are written as they come.

# Of a sheet's name.
LONGEST, REFUSED = 31, dict.fromkeys(map(ord, "[]:*?/\\"), "-")
OPTIONS = {
    "constant_memory": True,
    "strings_to_formulas": False,
    "strings_to_urls": False,
    "strings_to_numbers": False,
    "in_memory": True,
}


def workbook(lines: Iterable[str], tables: Iterable[Table]) -> bytes:
    """A sheet "Report" with these lines, then one for each table."""
    # Only here, because each start of the service would load it.
    import xlsxwriter

    out = io.BytesIO()
    book = xlsxwriter.Workbook(out, OPTIONS)
    bold, number = book.add_format({"bold": True}), book.add_format({"num_format": "0.00"})
    cover = book.add_worksheet("Report")
    cover.set_column(0, 0, 110)
    for index, line in enumerate(lines):
        cover.write_string(index, 0, line, bold if index == 0 else None)
    names: set[str] = {"report"}
    for table in tables:
        sheet = book.add_worksheet(_name(table.title, names))
        sheet.freeze_panes(1, 1)
        sheet.set_column(0, len(table.head) - 1, 16)
        for column, head in enumerate(table.head):
            sheet.write_string(0, column, head, bold)
        for index, row in enumerate(table.rows, 1):
            for column, value in enumerate(row):
                _write(sheet, index, column, value, number)
        if table.note:
            # After an empty row, so that it is no row of the table.
            sheet.write_string(len(table.rows) + 2, 0, table.note)
    book.close()
    return out.getvalue()


def _write(sheet: Any, row: int, column: int, value: Any, number: Any) -> None:
    """Unknown stays an empty cell."""
    if isinstance(value, bool | str):
        sheet.write_string(row, column, str(value))
    elif isinstance(value, datetime):
        sheet.write_string(row, column, cell(value))
    elif isinstance(value, int):
        sheet.write_number(row, column, value)
    elif value is not None:
        sheet.write_number(row, column, value, number)


def _name(title: str, taken: set[str]) -> str:
    base = title.translate(REFUSED)[:LONGEST].strip("'") or "Table"
    name, number = base, 2
    while name.casefold() in taken:
        name, number = f"{base[: LONGEST - 4]} {number}", number + 1
    taken.add(name.casefold())
    return name


# CSV of a report's users. Texts that a spreadsheet would run as a formula get an apostrophe.


# Some spreadsheets read the wide forms of East Asian scripts like the others.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%", "＝", "＋", "－", "＠")


def table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    """UTF-8 with one header row; unknown is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([harmless(row[name]) for name in columns])
    return out.getvalue().encode()


def harmless(value: Any) -> Any:
    """The value for a spreadsheet: a text is never a formula."""
    if value is None:
        return ""
    if isinstance(value, str) and value.lstrip(" ").startswith(FORMULA_STARTS):
        return f"'{value}"
    return value
