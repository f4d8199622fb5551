"""Renders a report in each format. All of them show the figures of the same report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.http import HttpResponse
from django.template.loader import render_to_string
from django.utils.safestring import mark_safe
from msgspec import Struct
from msgspec.structs import replace

from monitor.journal.rows import audit
from monitor.owners.accounts.policy import Look, next_look
from monitor.owners.accounts.rows import look_of
from reports.figures.facts import Report, Table
from reports.figures.policy import advice
from reports.figures.policy.violations import line, use_line
from reports.render import charts, codec, engines
from reports.render.charts import Picture
from reports.render.wording import brief, tables
from reports.render.wording import text as texts
from reports.render.wording.brief import Cover
from reports.render.wording.tables import MOST_PRINTED, cell

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
    return None if first is None else engines.png(first.svg, charts.WIDTH)


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
    response = HttpResponse(content, content_type=MEDIA[format][0])
    if format != "text":
        name = file_name(report, format)
        response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "private, no-store"
    return response


def file_name(report: Report, format: str) -> str:
    """Such as "gpu-report-24h-2026-11-23.pdf"; the scope's name is not in it."""
    return f"gpu-report-{report.period.name}-{report.period.until:%Y-%m-%d}.{MEDIA[format][1]}"


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
    shown = {table.key: _in_page(table) for table in tables.tables(report)}
    looks = _looks(report)
    totals, pictures = report.totals, charts.pictures(report, looks)
    return {
        "report": report,
        "base": report.url.rstrip("/"),
        "title": texts.title(report),
        "subtitle": texts.subtitle(report),
        "extent": texts.extent(report),
        "per_100": _per_100(report),
        "unused": 100 - totals.whole_per_100[0] if totals.whole_per_100 else None,
        "yardsticks": texts.yardsticks(),
        "sentences": texts.sentences(report),
        "comparison": [*texts.comparison(totals), *texts.energy(totals)],
        "violations": [(v, line(v)) for v in report.violations],
        "heavy_use": [(v, use_line(v)) for v in report.heavy_use],
        "heavy_use_title": texts.HEAVY_USE,
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
            (tables.name(u.user), finding) for u in report.users for finding in u.findings
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


def _json(report: Report) -> bytes:
    return (json.dumps(codec.as_json(report), indent=2) + "\n").encode()


def _csv(report: Report) -> bytes:
    return engines.table(CSV_COLUMNS, (codec.user(row) for row in report.users))


def _xlsx(report: Report) -> bytes:
    return engines.workbook(texts.lines(report), tables.tables(report))


def _html(report: Report) -> bytes:
    return render_to_string("reports/file.html", page_context(report) | {"is_file": True}).encode()


def _text(report: Report) -> bytes:
    return texts.text(report).encode()


def _brief_html(report: Report, cover: Cover) -> bytes:
    context = page_context(brief.shortened(report))
    context |= {
        "title": cover.title,
        "lead": brief.cut(cover.text),
        "is_file": True,
        "groups": [
            {"title": picture.title, "pictures": [(picture, table)], "tables": []}
            for group in context["groups"]
            for picture, table in group["pictures"]
            if picture.key in brief.PICTURES
        ],
    }
    return render_to_string("reports/file.html", context).encode()


def _brief_text(report: Report, cover: Cover) -> bytes:
    return brief.text(report, cover).encode()


def _brief_pdf(report: Report, cover: Cover) -> bytes:
    data = _pdf_data(brief.shortened(report))
    data |= {
        "title": cover.title,
        "lead": brief.cut(cover.text),
        "tables": [table for table in data["tables"] if table["key"] in brief.TABLES],
        "pictures": [picture for picture in data["pictures"] if picture["key"] in brief.PICTURES],
    }
    return engines.document(data)


def _pdf(report: Report) -> bytes:
    return engines.document(_pdf_data(report))


def _pdf_data(report: Report) -> dict[str, Any]:
    """Data for the template of the PDF."""
    per_100 = report.totals.whole_per_100
    labels = [label for _, label, _ in PARTS]
    return {
        "title": texts.title(report),
        "lead": "",
        "subtitle": texts.subtitle(report),
        "notes": list(report.notes),
        "per_100": [
            {"value": str(value), "label": f"of 100 GPU-hours held: {label}"}
            for value, label in zip(per_100, labels, strict=True)
        ]
        if per_100
        else None,
        "sentences": list(texts.sentences(report)),
        "lines": list(texts.headline(report.totals))[1:],
        "violations": [line(v) for v in report.violations] or ["none"],
        "advice": advice.headline(report),
        "recommendations": [r.text for r in report.recommendations],
        "tables": [printed(table) for table in tables.tables(report) if table.rows],
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
    "json": _json,
    "csv": _csv,
    "xlsx": _xlsx,
    "html": _html,
    "pdf": _pdf,
    "text": _text,
}
_BRIEF_RENDERERS: dict[str, Callable[[Report, Cover], bytes]] = {
    "html": _brief_html,
    "pdf": _brief_pdf,
    "text": _brief_text,
}
