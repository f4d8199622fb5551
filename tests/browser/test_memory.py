"""An open dashboard needs no more memory after a while than at first."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Open
from tests.browser.take_screenshot import PASSWORD, demo
from tests.browser.test_live import SEND_ANOTHER_ORDER, is_live

pytestmark = [pytest.mark.browser, pytest.mark.slow]
# Nothing that is loaded once is counted, such as compiled code.
SETTLE_MS = 15_000
COUNT_NODES = """() => {
  const walker = document.createTreeWalker(document, NodeFilter.SHOW_ALL);
  let count = 0;
  while (walker.nextNode()) count += 1;
  return count;
}"""


@dataclass(frozen=True, slots=True)
class Memory:
    """nodes: of the document. listeners: of events. heap: bytes in use after a collection."""

    nodes: int
    listeners: int
    heap: int


def memory(page: Page) -> Memory:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    session.send("HeapProfiler.enable")
    # The first collection finds what only finalizers of the second one free.
    for _ in range(2):
        session.send("HeapProfiler.collectGarbage")
    figures = session.send("Performance.getMetrics")["metrics"]
    values = {figure["name"]: int(figure["value"]) for figure in figures}
    session.detach()
    nodes = int(page.evaluate(COUNT_NODES))
    return Memory(nodes, values["JSEventListeners"], values["JSHeapUsedSize"])


def test_an_update_leaves_no_nodes_behind(open_page: Open) -> None:
    page = open_page("/")
    is_live(page)
    page.evaluate(SEND_ANOTHER_ORDER)
    expect(page.locator(".gpu").first).to_be_visible()
    before = page.locator("#gpus").evaluate(
        "(gpus) => gpus.querySelector('.grid').childNodes.length"
    )
    for _ in range(20):
        page.evaluate(SEND_ANOTHER_ORDER)
    after = page.locator("#gpus").evaluate(
        "(gpus) => gpus.querySelector('.grid').childNodes.length"
    )

    assert after == before


def test_an_open_dashboard_does_not_grow(open_page: Open) -> None:
    page = open_page("/")
    is_live(page)

    _does_not_grow(page, 60)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_the_dashboard_of_a_used_server_does_not_grow_in_half_an_hour(chromium: Browser) -> None:
    """With the demo's past: on a new server, the timeline of its first day would still fill."""
    with demo() as address:
        page = chromium.new_page()
        page.goto(f"{address}login/")
        page.get_by_label("User name").fill("admin")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        is_live(page)

        _does_not_grow(page, 1800)


def _does_not_grow(page: Page, seconds: int) -> None:
    page.wait_for_timeout(SETTLE_MS)
    before = memory(page)
    page.wait_for_timeout(1000 * seconds)
    after = memory(page)

    is_live(page)
    # Processes, events and bars of the timeline come and go.
    assert after.nodes < before.nodes + 150
    assert after.listeners <= before.listeners + 5
    assert after.heap < before.heap + 1_000_000
