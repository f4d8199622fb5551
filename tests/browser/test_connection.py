from __future__ import annotations

import os
import signal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PHONE, Open
from tests.browser.test_every_page import overflow
from tests.processes.service import Service, children

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_page_says_that_it_reconnects_and_then_does(open_page: Open, service: Service) -> None:
    page = open_page("/", expected=("WebSocket connection to", "htmx:ws:error"))
    live = page.locator("#live")
    expect(live).to_have_attribute("data-state", "live")
    port = urlsplit(service.address).port
    service.stop()

    expect(live).to_have_attribute("data-state", "reconnecting")
    expect(live).to_contain_text("as of")
    page.set_viewport_size(PHONE)
    assert overflow(page) <= 0
    expect(page.locator("body")).to_have_class("simulated is-stale")

    service.start("--port", str(port))
    expect(live).to_have_attribute("data-state", "live")


def test_a_page_says_that_its_figures_are_stale(open_page: Open, service: Service) -> None:
    page = open_page("/")
    live = page.locator("#live")
    expect(live).to_have_attribute("data-state", "live")
    # The supervisor too, or it would start the loops anew.
    stopped = [service.process.pid, service.child("tasks"), service.sentinel()]
    stopped += children(service.sentinel())
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        expect(live).to_have_attribute("data-state", "stale")
        expect(live).to_contain_text("ago")
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)

    expect(live).to_have_attribute("data-state", "live")


def test_a_page_stops_when_its_user_has_logged_out(open_page: Open) -> None:
    page = open_page("/")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    page.context.clear_cookies()
    # The socket comes back, as after an outage, and is told that nobody is logged in.
    page.evaluate("htmx.ext.ws.getRegistry().get('/ws/live/?on=dashboard').socket.close()")

    expect(page.locator("#live")).to_have_attribute("data-state", "off")
    expect(page.locator("#live")).to_contain_text("signed out")
    page.get_by_role("link", name="log in again").click()
    expect(page.get_by_label("User name")).to_be_visible()
