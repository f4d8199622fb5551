"""An open dashboard needs no more memory after a while than at first."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.test_live import SEND_BOARD, is_live

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
    page.evaluate(SEND_BOARD)
    expect(page.locator(".b-row").first).to_be_visible()
    count = "(gpus) => gpus.querySelector('.tl-rows').childNodes.length"
    before = page.locator("#gpus").evaluate(count)
    for _ in range(20):
        page.evaluate(SEND_BOARD)
    after = page.locator("#gpus").evaluate(count)

    assert after == before


@pytest.mark.long
def test_an_open_dashboard_does_not_grow(open_page: Open) -> None:
    page = open_page("/")
    is_live(page)
    before = _settled(page)
    page.wait_for_timeout(60_000)
    after = memory(page)

    is_live(page)
    # Processes, events and bars of the timeline come and go.
    assert after.nodes < before.nodes + 150
    assert after.listeners <= before.listeners + 5
    assert after.heap < before.heap + 1_000_000


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_dashboard_open_for_half_an_hour_holds_no_more_than_a_new_one(open_page: Open) -> None:
    """Events, incidents and bars of the timeline are added meanwhile: to both pages."""
    page = open_page("/")
    is_live(page)
    before = _settled(page)
    page.wait_for_timeout(1_800_000)
    after, new = memory(page), _settled(open_page("/"))

    is_live(page)
    assert after.nodes < new.nodes + 50
    assert after.listeners <= before.listeners + 5
    assert after.heap < before.heap + 1_000_000


def _settled(page: Page) -> Memory:
    page.wait_for_timeout(SETTLE_MS)
    return memory(page)
