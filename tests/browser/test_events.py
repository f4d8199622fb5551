from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.processes.service import Service

pytestmark = pytest.mark.browser


def happen(service: Service, text: str, times: int = 1) -> None:
    """Write events as another process would."""
    at = datetime.now(UTC).replace(tzinfo=None).isoformat(" ")
    row = (at, "GPU_XID", "warning", "", "", "", "", text)
    with sqlite3.connect(service.database, timeout=10) as database:
        for _ in range(times):
            database.execute(
                "INSERT INTO monitor_event (at, kind, severity, host, gpu_uuid, job_ref, owner,"
                " text) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )
    database.close()


def top_of(page: Page, row: str) -> float:
    return float(
        page.evaluate("(id) => document.getElementById(id).getBoundingClientRect().top", row)
    )


def test_new_events_appear_without_a_jump(service: Service, open_page: Open) -> None:
    happen(service, "an old one", times=40)
    page = open_page("/events/")
    page.evaluate("window.scrollTo(0, 400)")
    row = str(page.locator("#events tbody tr").nth(20).get_attribute("id"))
    before = top_of(page, row)

    happen(service, "quite new")
    page.get_by_text("quite new").wait_for(state="attached")

    assert abs(top_of(page, row) - before) < 2


def test_the_address_holds_what_is_chosen(service: Service, open_page: Open) -> None:
    happen(service, "an XID")
    page = open_page("/events/")
    page.get_by_label("Kind").select_option("GPU_XID")
    page.wait_for_url("**kind=GPU_XID**")
    page.get_by_role("link", name="Errors").click()
    page.wait_for_url("**severity=error**")

    assert "kind=GPU_XID" in page.url
    assert page.get_by_label("Kind").input_value() == "GPU_XID"
    expect(page.get_by_text("No events match.")).to_be_visible()
