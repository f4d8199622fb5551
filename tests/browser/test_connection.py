from __future__ import annotations

import os
import re
import signal
from urllib.parse import urljoin, urlsplit

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import PHONE, Open
from tests.browser.test_every_page import overflow
from tests.processes.service import Service, children

pytestmark = [pytest.mark.browser, pytest.mark.slow]


OUTAGE = (
    "WebSocket connection to",
    "htmx:ws:error",
    "htmx:error",
    "Failed to load resource",
    "Failed to fetch",
)
# How long a page may take to show that the server is gone, on a machine that is busy.
NOTICED_MS = 10_000
RECORD_STATES = """() => {
  window.states = [];
  const badge = document.getElementById("connection");
  new MutationObserver(() => window.states.push(badge.dataset.state))
    .observe(badge, { attributeFilter: ["data-state"] });
}"""


@pytest.mark.parametrize("path", ["/", "/status/", "/jobs/", "/rules/"])
def test_every_page_shows_within_seconds_that_the_server_is_gone_and_back(
    path: str, open_page: Open, service: Service
) -> None:
    page = open_page(path, expected=OUTAGE)
    badge = page.locator("#connection")
    expect(badge).to_have_attribute("data-state", "live")
    port = urlsplit(service.address).port
    service.stop()

    expect(badge).to_have_attribute("data-state", "lost", timeout=NOTICED_MS)
    expect(badge).to_contain_text("no answer since")
    expect(page.locator("body")).to_have_class("simulated is-stale is-lost")
    assert (
        page.evaluate("getComputedStyle(document.querySelector('main')).filter") == "grayscale(1)"
    )
    page.set_viewport_size(PHONE)
    assert overflow(page) <= 0

    service.start("--port", str(port))
    expect(badge).to_have_attribute("data-state", "live")
    expect(page.get_by_text("Reconnected")).to_be_visible()
    expect(page.locator("body")).to_have_class("simulated")


@pytest.mark.parametrize(("path", "log_in"), [("/admin/", True), ("/login/", False)])
def test_the_admin_and_the_login_show_it_too(
    path: str, log_in: bool, open_page: Open, service: Service
) -> None:
    page = open_page(path, log_in=log_in, expected=OUTAGE)
    badge = page.locator("#connection")
    # It is still live when a page without a socket has asked for the first time.
    page.wait_for_timeout(6_000)
    expect(badge).to_have_attribute("data-state", "live")
    port = urlsplit(service.address).port
    service.stop()

    expect(badge).to_have_attribute("data-state", "lost", timeout=NOTICED_MS)
    expect(badge).to_contain_text("no answer since")
    expect(page.locator("body")).to_have_class(re.compile("is-lost"))
    page.set_viewport_size(PHONE)
    assert overflow(page) <= 0

    service.start("--port", str(port))
    expect(badge).to_have_attribute("data-state", "live")
    expect(page.get_by_text("Reconnected")).to_be_visible()


def test_a_polled_page_shows_that_the_server_hangs(open_page: Open, service: Service) -> None:
    page = open_page("/jobs/", expected=OUTAGE)
    badge = page.locator("#connection")
    expect(badge).to_have_attribute("data-state", "live")
    # The supervisor too, or it would replace the web process.
    stopped = [service.process.pid, service.child("web")]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        expect(badge).to_have_attribute("data-state", "lost", timeout=NOTICED_MS)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)

    expect(badge).to_have_attribute("data-state", "live")


@pytest.mark.parametrize("path", ["/jobs/", "/admin/"])
def test_live_updates_arrive_when_a_script_of_the_page_comes_late(
    path: str, open_page: Open
) -> None:
    def late(route: Route) -> None:
        page.wait_for_timeout(1_000)
        route.continue_()

    page = open_page("/account/")
    page.route("**/hx-ws*", late)
    page.goto(urljoin(page.url, path))

    assert page.evaluate("htmx.ext.ws.getRegistry().size") == 1


def test_a_failing_update_keeps_the_content_and_marks_the_page_as_stale(open_page: Open) -> None:
    page = open_page("/jobs/", expected=(*OUTAGE, "500"))
    before = page.locator("#jobs").inner_text()
    page.route("**/jobs/", lambda route: route.fulfill(status=500, body="<h1>Error 500</h1>"))

    expect(page.locator("#connection")).to_have_attribute("data-state", "stale")
    expect(page.locator("#connection")).to_contain_text("stale since")
    assert page.locator("#jobs").inner_text() == before

    page.unroute("**/jobs/")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")


def test_a_polled_page_keeps_its_content_when_the_session_ends(open_page: Open) -> None:
    page = open_page("/status/")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.context.clear_cookies()

    expect(page.locator("#connection")).to_contain_text("signed out")
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_a_page_says_that_its_figures_are_stale(open_page: Open, service: Service) -> None:
    page = open_page("/")
    live = page.locator("#connection")
    expect(live).to_have_attribute("data-state", "live")
    # The supervisor too, or it would start the loops anew.
    stopped = [service.process.pid, service.child("tasks")]
    stopped += children(service.child("tasks"))
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        expect(live).to_have_attribute("data-state", "stale")
        expect(live).to_contain_text("stale since")
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)

    expect(live).to_have_attribute("data-state", "live")


def test_a_page_stops_when_its_user_has_logged_out(open_page: Open) -> None:
    page = open_page("/")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    page.context.clear_cookies()
    # The socket comes back, as after an outage, and is told that no user is logged in.
    page.evaluate("htmx.ext.ws.getRegistry().get('/ws/live/?on=dashboard').socket.close()")

    expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
    expect(page.locator("#connection")).to_contain_text("signed out")
    page.get_by_role("link", name="Log in again").click()
    expect(page.get_by_label("User name")).to_be_visible()


def test_a_silent_socket_beside_working_polls_stays_stale(open_page: Open) -> None:
    page = open_page("/jobs/")
    page.route_web_socket(re.compile("/ws/live/"), lambda socket: None)
    page.reload()
    badge = page.locator("#connection")
    expect(badge).to_have_attribute("data-state", "stale")
    page.evaluate(RECORD_STATES)
    page.wait_for_timeout(9_000)

    assert page.evaluate("window.states") == []
    assert "live updates do not arrive" in str(badge.get_attribute("title"))
