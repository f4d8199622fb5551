"""Renders a report in each format. All of them show the figures of the same report."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.http import HttpResponse
from django.template.loader import render_to_string
from django.utils.safestring import mark_safe
from msgspec import Struct
from msgspec.structs import asdict, replace

from monitor.journal.rows import audit
from monitor.owners.policy import Look, next_look
from monitor.owners.rows import look_of
from reports.figures.facts import (
    YARDSTICKS,
    FindingFact,
    GpuFigures,
    GpuHours,
    Report,
    Table,
    Totals,
    UserFigures,
)
from reports.figures.policy import advice
from reports.figures.policy.advice import line, use_line
from reports.render import charts, wording
from reports.render.charts import Picture
from reports.render.wording import MOST_PRINTED, Cover, cell

# Of an hour or a percent: finer differences are noise.
DIGITS = 6


def as_json(report: Report) -> dict[str, Any]:
    """All figures of the report."""
    period = report.period
    return {
        "period": {
            "name": period.name,
            "label": period.label,
            "from": period.since.isoformat(),
            "to": period.until.isoformat(),
            "zone": period.zone,
            "hours": rounded(period.hours),
        },
        "scope": report.scope.text,
        "made_at": report.made_at.isoformat(timespec="seconds"),
        "coverage": part(report.coverage_pct),
        "least_coverage": part(report.least_coverage_pct),
        "notes": list(report.notes),
        "summary": list(wording.sentences(report)),
        "wider_than_scope": wording.wider_figures(report),
        "totals": _totals(report.totals),
        "users": [user(row) for row in report.users],
        "violations": [_rounded(asdict(v)) | {"text": line(v)} for v in report.violations],
        "heavy_use": [_rounded(asdict(v)) | {"text": use_line(v)} for v in report.heavy_use],
        "open_incidents": [_finding(finding) for finding in report.open_incidents],
        "recommendations": [asdict(r) for r in report.recommendations],
        "queue": [_rounded(asdict(row)) for row in report.queue],
        "blockers": [_rounded(asdict(row)) for row in report.blockers],
        "incidents": [_rounded(asdict(row)) for row in report.incidents],
        "operation": _rounded(asdict(report.operation)),
        "patterns": [asdict(row) for row in report.patterns],
        "gpus": [_gpu(gpu) for gpu in report.gpus],
        "heat": [[rounded(value) for value in row] for row in report.heat],
        "waits": [{"t": t, "hours": rounded(hours)} for t, hours in report.waits],
        "sections": [asdict(table) for table in report.sections],
    }


def user(row: UserFigures) -> dict[str, Any]:
    """One user; the first eleven names are those of the CSV's first columns."""
    return {
        "user": row.user,
        "gpu_hours_held": rounded(row.held),
        "gpu_hours_used": rounded(row.used),
        "gpu_hours_idle_held": rounded(row.idle_held),
        "efficiency": rounded(row.efficiency),
        "coverage": rounded(row.coverage),
        "entitled_pct": rounded(row.entitled_pct),
        "entitlement_pct": rounded(row.entitled_pct),
        "target_share_pct": rounded(row.target_pct),
        "use_pct": rounded(row.share_pct),
        "share_pct": rounded(row.share_pct),
        "waited_hours": rounded(row.waited_hours),
        "caused_wait_hours": rounded(row.caused_wait_hours),
        "energy_kwh": rounded(row.energy_kwh),
        "gpu_hours_booked_empty": rounded(row.booked_empty),
        "gpu_hours_unknown": rounded(row.unknown),
        "memory_gib_hours": rounded(row.memory_gib_hours),
        "target_pct": rounded(row.target_pct),
        "overuse_hours": rounded(row.overuse_hours),
        "idle_energy_kwh": rounded(row.idle_energy_kwh),
        "right_size": row.right_size.text if row.right_size else None,
        "is_anonymous": row.is_anonymous,
        "trend": [
            {
                "from": point.since.isoformat(),
                "gpu_hours_used": rounded(point.used),
                "efficiency": rounded(point.efficiency),
            }
            for point in row.trend
        ],
        "findings": [_finding(finding) for finding in row.findings],
        "further_findings": row.further_findings,
    }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), DIGITS)


def part(pct: float | None) -> float | None:
    """A percentage as a part, 0 to 1."""
    return None if pct is None else round(pct / 100, DIGITS)


def _totals(totals: Totals) -> dict[str, Any]:
    per_100 = totals.per_100
    names = ("used", "idle_held", "booked_empty")
    return {
        "gpus": totals.gpus,
        "gpu_hours": gpu_hours(totals.gpu_hours),
        "is_reconciled": totals.gpu_hours.is_reconciled,
        "people": {**gpu_hours(totals.people), "held": rounded(totals.people.held)},
        "of_100_held": dict(zip(names, map(rounded, per_100), strict=True)) if per_100 else None,
        "wasted_of_100_elsewhere": dict(YARDSTICKS),
        "used_before": rounded(totals.used_before),
        "waited_hours": rounded(totals.waited_hours),
        "waited_while_idle_hours": rounded(totals.waited_idle_hours),
        "energy_kwh": rounded(totals.energy_kwh),
        "idle_energy_kwh": rounded(totals.idle_energy_kwh),
        "costs": _rounded(asdict(totals.costs)),
    }


def gpu_hours(hours: GpuHours) -> dict[str, float | None]:
    return {name: rounded(value) for name, value in asdict(hours).items()}


def _finding(finding: FindingFact) -> dict[str, Any]:
    return {**_rounded(asdict(finding)), "since": finding.since.isoformat()}


def _gpu(gpu: GpuFigures) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "name": gpu.name,
        "gpu_hours": gpu_hours(gpu.hours),
        "energy_kwh": rounded(gpu.energy_kwh),
    }


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: rounded(value) if isinstance(value, float) else value
        for name, value in values.items()
    }


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
    for index, text in enumerate(lines):
        cover.write_string(index, 0, text, bold if index == 0 else None)
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


CSV_COLUMNS = (
    "user",
    "gpu_hours_held",
    "gpu_hours_used",
    "gpu_hours_idle_held",
    "efficiency",
    "coverage",
    "entitled_pct",
    "share_pct",
    "waited_hours",
    "caused_wait_hours",
    "energy_kwh",
    "gpu_hours_booked_empty",
    "gpu_hours_unknown",
    "memory_gib_hours",
    "target_pct",
    "overuse_hours",
    "idle_energy_kwh",
    "right_size",
)
# A user whose name is hidden from the viewer.
HIDDEN = re.compile(r"user \d{1,9}")
# {format: (content type, extension of a file)}
MEDIA = {
    "json": ("application/json", "json"),
    "csv": ("text/csv; charset=utf-8", "csv"),
    "xlsx": ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "xlsx"),
    "html": ("text/html; charset=utf-8", "html"),
    "pdf": ("application/pdf", "pdf"),
    "text": ("text/plain; charset=utf-8", "txt"),
}
FORMATS = tuple(MEDIA)
# Shown on the page, in the HTML file and in the PDF; the XLSX file has all.
PARTS = (
    ("used", "used", "#3d7fc9"),
    ("idle-held", "idle", "#c98a2b"),
    ("booked", "booked but empty", "#8b95a3"),
)
LONG_TABLES = ("timeline", "heat", "waits")
# Parts of the page below its first screen: title, pictures, tables. Other tables come last.
GROUPS = (
    ("GPUs", ("timeline", "heat"), ("balance",)),
    ("Queue and waits", ("waits",), ("queue", "blockers")),
    ("More about users", ("scatter",), ("details",)),
    ("Incidents and load control", (), ("incidents", "operation", "patterns")),
)
FIRST_PICTURE = "shares"
# In a mail, the first recommendations; the report has all.
MOST_MAILED = 3


def render(report: Report, format: str, cover: Cover | None = None) -> bytes:
    """With a cover: its one-page form, as HTML, PDF and text.

    Raises KeyError for an unknown format, and NoTypst for PDF without the extra.
    """
    if cover is not None and format in _BRIEF_RENDERERS:
        return _BRIEF_RENDERERS[format](report, cover)
    return _RENDERERS[format](report)


class MailFrame(Struct, frozen=True, kw_only=True):
    """The words of a mail before and after the report.

    link: to the stored report. reason: why the receiver gets the mail. opt_out: where it is turned
    off. Addresses are "" where the address of gpucoord is not set.
    """

    title: str
    lead: str = ""
    link: str = ""
    reason: str = ""
    opt_out: str = ""
    has_failed_chart: bool = False


def mail(report: Report, frame: MailFrame, picture: str) -> str:
    """The first screen of the report as HTML. picture: the address of its chart; "" = none."""
    context = page_context(report) | {
        "title": frame.title,
        "lead": frame.lead.splitlines(),
        "frame": frame,
        "picture": picture,
        "recommendations": report.recommendations[:MOST_MAILED],
    }
    return render_to_string("reports/mail.html", context)


def mail_picture(report: Report) -> bytes | None:
    """The chart of the first screen as PNG, because mail programs show no SVG.

    None without a chart. Raises NoTypst.
    """
    first = charts.shares(report, _looks(report))
    return None if first is None else png(first.svg, charts.WIDTH)


def deliver(report: Report, format: str, by: str, now: datetime, base: str) -> HttpResponse:
    """A download, which is audited. `base`: the address of this server, for links in files."""
    content = render(replace(report, url=base), format)
    audit.note(
        "REPORT_DOWNLOADED",
        f"{by} downloaded the usage report of {report.scope.text}, {report.period.label},"
        f" as {format}",
        by=by,
        now=now,
        subject=f"report {report.scope.text}"[:200],
    )
    # The scope's name is not in that of the file.
    name = f"gpu-report-{report.period.name}-{report.period.until:%Y-%m-%d}.{MEDIA[format][1]}"
    return download(content, format, name)


def download(content: bytes, format: str, name: str) -> HttpResponse:
    """The file; a browser shows text instead of saving it."""
    response = HttpResponse(content, content_type=MEDIA[format][0])
    if format != "text":
        response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "private, no-store"
    return response


def _looks(report: Report) -> dict[str, Look]:
    """As on the other pages; hidden users get looks that no other user of the report has."""
    users = [row.user for row in report.users]
    users += [span.user for gpu in report.gpus for span in gpu.spans]
    names = [name for name in dict.fromkeys(users) if name]
    looks = {name: look_of(name) for name in names if not HIDDEN.fullmatch(name)}
    for name in names:
        if name not in looks:
            looks[name] = next_look(name, looks)
    return looks


def page_context(report: Report, mine: str = "") -> dict[str, Any]:
    """Template variables of the page and of the HTML file. `mine`: the user who looks."""
    shown = {table.key: _in_page(table) for table in wording.tables(report)}
    looks = _looks(report)
    totals, pictures = report.totals, charts.pictures(report, looks)
    return {
        "report": report,
        "base": report.url.rstrip("/"),
        "title": wording.title(report),
        "subtitle": wording.subtitle(report),
        "extent": wording.extent(report),
        "per_100": _per_100(report),
        "unused": 100 - totals.whole_per_100[0] if totals.whole_per_100 else None,
        "yardsticks": wording.yardsticks(),
        "sentences": wording.sentences(report),
        "comparison": [*wording.comparison(totals), *wording.energy(totals)],
        "violations": [(v, line(v)) for v in report.violations],
        "heavy_use": [(v, use_line(v)) for v in report.heavy_use],
        "heavy_use_title": wording.HEAVY_USE,
        "advice": advice.headline(report),
        "people": [
            {
                "cells": cells,
                "css": charts.owner_css(row.user, looks),
                "trend": mark_safe(charts.spark(row)),  # noqa: S308 - our own SVG, texts escaped
                "is_mine": bool(mine) and row.user == mine,
            }
            for row, cells in zip(report.users, shown["users"]["rows"], strict=False)
        ],
        "further_findings": sum(u.further_findings for u in report.users),
        "findings": [
            (wording.name(u.user), finding) for u in report.users for finding in u.findings
        ],
        "first_picture": next((p for p in pictures if p.key == FIRST_PICTURE), None),
        "first_narrow": mark_safe(charts.narrow_shares(report, looks)),  # noqa: S308 - as above
        "groups": list(_groups(pictures, shown)),
        "users": shown["users"],
        "has_trend": any(row.trend for row in report.users),
    }


def _groups(
    pictures: Sequence[Picture], shown: Mapping[str, dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The folded parts of the page; those without figures are left out."""
    named = {key for *_, keys in GROUPS for key in keys}
    others = [key for key in shown if key not in {*named, *LONG_TABLES, "users"}]
    for title, picture_keys, table_keys in (*GROUPS, ("Other figures", (), others)):
        group = {
            "title": title,
            "pictures": [(p, shown[p.table]) for p in pictures if p.key in picture_keys],
            "tables": [shown[key] for key in table_keys if key in shown and shown[key]["rows"]],
        }
        if group["pictures"] or group["tables"]:
            yield group


def _per_100(report: Report) -> list[dict[str, Any]] | None:
    """The three parts of the bar."""
    values = report.totals.whole_per_100
    if values is None:
        return None
    parts, at = [], 0.0
    for value, (css, label, fill) in zip(values, PARTS, strict=True):
        parts.append({"value": value, "at": at, "css": css, "label": label, "fill": fill})
        at += value
    return parts


def _in_page(table: Table) -> dict[str, Any]:
    """As `printed`. heads, cells: the texts, each with whether its column has figures; cells have
    the instant of a time too, which the page shows in the browser's zone.
    """
    shown = printed(table)
    cells = [
        [
            (text, numeric, value if isinstance(value, datetime) else None)
            for text, numeric, value in zip(row, shown["numeric"], values, strict=True)
        ]
        for row, values in zip(shown["rows"], table.rows, strict=False)
    ]
    return shown | {"heads": list(zip(table.head, shown["numeric"], strict=True)), "cells": cells}


def printed(table: Table) -> dict[str, Any]:
    """The table as texts, at most 200 rows. numeric: columns with figures."""
    hidden = max(0, len(table.rows) - MOST_PRINTED)
    rows = [[cell(value) for value in row] for row in table.rows[:MOST_PRINTED]]
    numeric = [
        i > 0 and any(isinstance(row[i], int | float) for row in table.rows)
        for i in range(len(table.head))
    ]
    return {
        "key": table.key,
        "title": table.title,
        "head": list(table.head),
        "rows": rows,
        "numeric": numeric,
        "note": table.note,
        "more": f"{hidden} more rows are in the XLSX file." if hidden else "",
    }


def _file(context: dict[str, Any]) -> bytes:
    return render_to_string("reports/file.html", context | {"is_file": True}).encode()


def _brief_html(report: Report, cover: Cover) -> bytes:
    context = page_context(wording.shortened(report))
    context |= {
        "title": cover.title,
        "lead": wording.cut(cover.text),
        "groups": [
            {"title": picture.title, "pictures": [(picture, table)], "tables": []}
            for group in context["groups"]
            for picture, table in group["pictures"]
            if picture.key in wording.PICTURES
        ],
    }
    return _file(context)


def _brief_pdf(report: Report, cover: Cover) -> bytes:
    data = _pdf_data(wording.shortened(report))
    data |= {
        "title": cover.title,
        "lead": wording.cut(cover.text),
        "tables": [table for table in data["tables"] if table["key"] in wording.TABLES],
        "pictures": [picture for picture in data["pictures"] if picture["key"] in wording.PICTURES],
    }
    return document(data)


def _pdf_data(report: Report) -> dict[str, Any]:
    """Data for the template of the PDF."""
    per_100 = report.totals.whole_per_100
    labels = [label for _, label, _ in PARTS]
    return {
        "title": wording.title(report),
        "lead": "",
        "subtitle": wording.subtitle(report),
        "notes": list(report.notes),
        "per_100": [
            {"value": str(value), "label": f"of 100 GPU-hours held: {label}"}
            for value, label in zip(per_100, labels, strict=True)
        ]
        if per_100
        else None,
        "sentences": list(wording.sentences(report)),
        "lines": list(wording.headline(report.totals))[1:],
        "violations": [line(v) for v in report.violations] or ["none"],
        "advice": advice.headline(report),
        "recommendations": [r.text for r in report.recommendations],
        "tables": [printed(table) for table in wording.tables(report) if table.rows],
        "pictures": [
            {
                "key": picture.key,
                "title": picture.title,
                "svg": picture.svg,
                "caption": picture.caption,
            }
            for picture in charts.pictures(report, _looks(report))
        ],
    }


_RENDERERS: dict[str, Callable[[Report], bytes]] = {
    "json": lambda report: (json.dumps(as_json(report), indent=2) + "\n").encode(),
    "csv": lambda report: table(CSV_COLUMNS, map(user, report.users)),
    "xlsx": lambda report: workbook(wording.lines(report), wording.tables(report)),
    "html": lambda report: _file(page_context(report)),
    "pdf": lambda report: document(_pdf_data(report)),
    "text": lambda report: wording.text(report).encode(),
}
_BRIEF_RENDERERS: dict[str, Callable[[Report, Cover], bytes]] = {
    "html": _brief_html,
    "pdf": _brief_pdf,
    "text": lambda report, cover: wording.brief_text(report, cover).encode(),
}
