"""Pages do not jump, and the keyboard suffices."""

from __future__ import annotations

import re
import sqlite3
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from tests.browser.conftest import GPU_0, OVERUSE, PHONE, WIDE, Open, open_incident
from tests.browser.test_live import is_live
from tests.processes.service import Service

pytestmark = [pytest.mark.browser, pytest.mark.slow]
MOST_SHIFT = 0.02
NOTE_SHIFTS = """window.shifts = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (entry.hadRecentInput) continue;
    const moved = entry.sources.map(({ node }) => node?.id || node?.className || node?.nodeName);
    window.shifts.push([entry.value, moved.join(" ")]);
  }
}).observe({ type: "layout-shift", buffered: true });"""


NAMED = "(name) => (document.activeElement.textContent || '').trim() === name"
LABELLED = "(name) => document.activeElement.labels?.[0]?.textContent.trim() === name"


def press_tab_to(page: Page, condition: str, name: str, most: int = 80) -> None:
    """Reach a control by the Tab key alone."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate(condition, name):
            return
    raise AssertionError(f"no Tab stop is named {name}")


def test_a_job_is_submitted_and_cancelled_by_keyboard_alone(open_page: Open) -> None:
    page = open_page("/")
    page.keyboard.press("g")
    page.keyboard.press("n")
    page.wait_for_url("**/jobs/new/")
    press_tab_to(page, LABELLED, "Command")
    page.keyboard.type("sleep 600")
    press_tab_to(page, NAMED, "Submit the job")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    expect(page.locator("#toasts")).to_contain_text("is submitted")
    expect(page.locator(".job-verdict .badge")).to_have_text("running")

    press_tab_to(page, NAMED, "Cancel")
    page.keyboard.press("Enter")
    expect(page.locator("#cancel-dialog")).to_be_visible()
    press_tab_to(page, NAMED, "Cancel the job", most=3)
    page.keyboard.press("Enter")

    expect(page.locator(".job-verdict .badge")).to_have_text("cancelled")


def test_an_incident_is_acknowledged_by_keyboard_alone(open_page: Open, service: Service) -> None:
    open_incident(service)
    page = open_page("/")
    page.keyboard.press("g")
    page.keyboard.press("i")
    page.wait_for_url("**/incidents/")
    press_tab_to(page, NAMED, OVERUSE)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/incidents/\d+/$"))
    press_tab_to(page, LABELLED, "Reason, and expected end")
    page.keyboard.type("Deadline on Friday.")
    press_tab_to(page, NAMED, "Acknowledge", most=2)
    page.keyboard.press("Enter")

    expect(page.locator("#toasts")).to_contain_text("is acknowledged")
    expect(page.locator("#incident-facts")).to_contain_text("Acknowledged by admin")
    expect(page.locator("#incident-facts")).to_contain_text("Deadline on Friday.")


def test_nothing_jumps_when_trouble_appears(open_page: Open) -> None:
    page = open_page("/")
    page.add_init_script(NOTE_SHIFTS)
    page.reload()
    is_live(page)
    page.evaluate("window.shifts = []")
    operator = page.context.new_page()
    pages = []
    for number in range(3):
        operator.goto("/jobs/new/")
        operator.get_by_label("Command").fill(f"echo {number}; sleep 600")
        operator.get_by_role("button", name="Submit the job").click()
        operator.wait_for_url(re.compile(r"/jobs/\d+/$"))
        pages.append(operator.url)
    queue = page.locator("#region-queue")
    for address in pages:
        path = urlsplit(address).path
        expect(queue.locator(f"a[href='{path}']")).to_be_visible()
    # One GPU is always empty; whether others take a job depends on the time of the simulation.
    expect(queue.locator("header")).to_contain_text(re.compile(r"[1-3] running"))
    operator.goto("/")
    address = operator.locator(GPU_0).get_attribute("href")
    operator.goto(str(address))
    operator.get_by_role("button", name="Drain").click()
    expect(page.locator("[data-gpu-row='0']")).to_contain_text("paused")
    page.wait_for_timeout(8_000)

    shifts = page.evaluate("window.shifts")
    # Jobs outlive the service.
    for address in pages:
        operator.goto(f"{address}cancel/")
        operator.get_by_role("button", name="Cancel the job").click()
        expect(operator.locator(".job-verdict .badge")).to_have_text("cancelled")
    assert sum(value for value, _ in shifts) <= MOST_SHIFT, shifts


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["desktop", "phone"])
def test_an_incident_moves_nothing_when_it_opens(
    size: ViewportSize, open_page: Open, service: Service
) -> None:
    with sqlite3.connect(service.database, timeout=10) as database:
        database.execute("UPDATE monitor_incident SET closed_at = last_seen_at")
    database.close()
    page = open_page("/", size=size)
    page.add_init_script(NOTE_SHIFTS)
    page.reload()
    is_live(page)
    at_load = page.evaluate("window.shifts")
    expect(page.locator("#region-incidents")).to_contain_text("No open incidents")
    page.evaluate("window.shifts = []")
    open_incident(service, f"seen at {size['width']}")
    expect(page.locator("#region-incidents")).to_contain_text(OVERUSE)
    page.wait_for_timeout(3_000)

    shifts = page.evaluate("window.shifts")
    assert sum(value for value, _ in at_load) <= MOST_SHIFT, at_load
    assert sum(value for value, _ in shifts) <= MOST_SHIFT, shifts


CROWDED = """() => {
  const row = document.querySelector(".b-row"), before = row.offsetHeight;
  const owner = '<a class="owner u1 s1">gpucoord-models</a><span class="muted">×12</span>';
  row.querySelector(".b-state").innerHTML = `<span class="badge">in use by owner</span>
    <a class="chip warning">outside the queue</a>`;
  row.querySelector(".b-who").innerHTML = `<span class="b-owners">${owner.repeat(3)}</span>
    <span class="b-work"><a href="#">${"name".repeat(40)}</a> 50 % · ends ~10:30</span>`;
  return [before, row.offsetHeight];
}"""


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["desktop", "phone"])
def test_a_long_headline_takes_no_more_room(size: ViewportSize, open_page: Open) -> None:
    page = open_page("/", size=size)
    before, after = page.evaluate(
        """() => {
          const box = document.querySelector("#summary"), before = box.offsetHeight;
          box.querySelector("h1 .badge > span").textContent = "Heavy use on GPU 4: ".repeat(9);
          return [before, box.offsetHeight];
        }"""
    )

    assert after == before


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["desktop", "phone"])
def test_an_incident_and_three_owners_leave_a_row_its_height(
    size: ViewportSize, open_page: Open
) -> None:
    before, after = open_page("/", size=size).evaluate(CROWDED)

    assert after == before


def test_a_job_tells_its_end_by_a_notification_of_the_browser(open_page: Open) -> None:
    page = open_page("/jobs/new/")
    page.context.grant_permissions(["notifications"])
    # Headless Chromium shows none.
    page.add_init_script(
        "window.told = []; window.Notification = class extends EventTarget {"
        " static requestPermission() { return Promise.resolve('granted'); }"
        " constructor(title) { super(); window.told.push(title); } };"
    )
    page.goto("/jobs/new/")
    page.get_by_label("Command").fill("sleep 8")
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    page.get_by_role("button", name="Tell me when it ends").click()
    expect(page.locator("#toasts")).to_contain_text("will appear")

    page.wait_for_function("() => window.told.length === 1")
    assert re.fullmatch(r"Job \d+ sleep 8: succeeded", page.evaluate("window.told[0]"))
