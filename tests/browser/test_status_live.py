from __future__ import annotations

import os
import signal
import time

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PHONE, Open
from tests.processes.service import Service

pytestmark = [pytest.mark.browser, pytest.mark.processes]


def test_the_status_page_follows_what_happens(open_page: Open, service: Service) -> None:
    page = open_page("/status/")
    expect(page.get_by_role("heading", level=1)).to_have_text("All services running")
    web = page.get_by_role("row", name="tasks")
    expect(web).to_contain_text("up")

    os.kill(service.child("tasks"), signal.SIGKILL)

    # It should show without a reload that the process was replaced, and how the old one ended.
    expect(web).to_contain_text("SIGKILL")
    expect(page.get_by_role("heading", level=1)).to_have_text("All services running")


def test_the_status_page_fits_a_phone(open_page: Open) -> None:
    page = open_page("/status/", size=PHONE)
    # Its loops have run for a moment: all columns are filled.
    time.sleep(1)

    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
