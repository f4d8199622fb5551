"""Messages about the user's own jobs as notifications of the browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.processes.service import Service

pytestmark = [pytest.mark.browser, pytest.mark.slow]
# Headless Chromium shows none. All pages of the context report to one list.
RECORD = """
window.Notification = class extends EventTarget {
  static permission = window.sessionStorage.getItem("permission") || "granted";
  static requestPermission() { return Promise.resolve(this.permission = "granted"); }
  constructor(title, options) { super(); window.tell(title, options.body); }
};
"""


def _record(page: Page) -> list[tuple[str, str]]:
    told: list[tuple[str, str]] = []
    page.context.grant_permissions(["notifications"])
    page.context.expose_function("tell", lambda title, body: told.append((title, body)))
    page.context.add_init_script(RECORD)
    page.context.clock.install()
    return told


def _let_pages_ask(page: Page) -> None:
    """Let the pages of this browser believe that 21 seconds are over: they ask every 20."""
    page.context.clock.fast_forward(21_000)
    page.wait_for_timeout(500)


def _choose(page: Page) -> None:
    page.goto("/account/notifications/")
    page.get_by_label("A job has failed").check()
    page.get_by_label("In the browser").check()
    expect(page.locator("#browser-notices-state")).to_have_text("This browser shows them.")
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    with page.expect_response(re.compile("/recent/")):
        _let_pages_ask(page)


def _submit(page: Page, command: str) -> None:
    page.goto("/jobs/new/")
    page.get_by_label("Command").fill(command)
    page.get_by_label("GPUs", exact=True).fill("0")
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))


def test_any_open_page_tells_once_of_a_failed_job(open_page: Open) -> None:
    page = open_page("/rules/")
    told = _record(page)
    _choose(page)
    other = page.context.new_page()
    other.goto("/rules/")
    _submit(page, "sleep 1; exit 7")

    for _ in range(100):
        if told:
            break
        _let_pages_ask(page)
    for _ in range(3):
        _let_pages_ask(page)
    ((title, body),) = told
    assert re.fullmatch(r"Job \d+ \(sleep\) failed", title)
    assert "exit code 7" in body

    page.reload()
    page.wait_for_timeout(1_000)
    assert len(told) == 1


def test_without_the_choice_a_page_asks_once_and_shows_nothing(open_page: Open) -> None:
    page = open_page("/rules/")
    told = _record(page)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto("/account/notifications/")
    page.get_by_label("In the browser").uncheck()
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/account/notifications/")
    requests.clear()
    page.goto("/rules/")
    for _ in range(3):
        _let_pages_ask(page)

    assert len([url for url in requests if "/recent/" in url]) <= 1
    assert told == []


def test_a_browser_without_the_permission_does_not_ask(open_page: Open) -> None:
    page = open_page("/rules/")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto("/jobs/")
    page.wait_for_timeout(3_000)

    assert not [url for url in requests if "/recent/" in url]


def test_over_plain_http_the_setting_is_hidden_with_the_reason(
    open_page: Open, service: Service
) -> None:
    page = open_page("/rules/")
    page.add_init_script("Object.defineProperty(window, 'isSecureContext', { value: false });")
    page.goto("/account/notifications/")

    expect(page.get_by_label("In the browser")).not_to_be_visible()
    expect(page.locator("#browser-notices-insecure")).to_contain_text("https or localhost")
    values: Any = page.locator("#browser-notices").get_attribute("hidden")
    assert values is not None
