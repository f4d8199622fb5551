from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import GPU_0, Open

pytestmark = pytest.mark.browser
# Of the simulated server's eight GPUs, one is lost for a minute now and then.
ALWAYS_THERE = 7


def is_live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")


def test_the_dashboard_changes_by_itself(open_page: Open) -> None:
    page = open_page("/")
    connection = page.locator("#connection")
    expect(connection).to_have_text(re.compile(r"live · \d\d:\d\d:\d\d"))
    stamp = connection.inner_text()
    figures = "[data-live^='g:'] [data-v='2']"
    before = page.locator(figures).all_inner_texts()

    page.wait_for_function(
        "([selector, before]) => JSON.stringify([...document.querySelectorAll(selector)]"
        ".map((e) => e.textContent)) !== JSON.stringify(before)",
        arg=[figures, before],
    )

    assert len(before) >= ALWAYS_THERE
    expect(connection).not_to_have_text(stamp)


def test_a_bar_moves_with_its_figure(open_page: Open) -> None:
    page = open_page("/")
    is_live(page)
    page.wait_for_timeout(1500)
    pairs = page.evaluate(
        """() => [...document.querySelectorAll('.gpu')].map((card) => [
            Number(card.querySelector("b[data-v='0']").textContent),
            Number(card.querySelector("svg[data-v='0'] rect")?.getAttribute("width"))])
            .filter(([figure]) => !Number.isNaN(figure))"""
    )

    assert len(pairs) >= ALWAYS_THERE
    assert all(figure == width for figure, width in pairs)


def test_the_gpu_page_is_live_and_reads_its_charts(open_page: Open) -> None:
    page = open_page("/")
    page.locator(GPU_0).click()
    is_live(page)
    expect(page.locator("figure.chart")).to_have_count(4)
    plot = page.locator(".plot").first
    plot.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")

    expect(page.locator("#readout-time")).to_contain_text("At ")
    expect(page.locator(".readout").first).not_to_have_text("")


def test_the_filter_narrows_the_processes_and_the_address_holds_it(open_page: Open) -> None:
    page = open_page("/processes/")
    is_live(page)
    page.keyboard.press("/")
    page.keyboard.type("dana")

    expect(page).to_have_url(re.compile(r"\?q=dana"))
    rows = page.locator("tbody tr")
    expect(rows.first.locator(".owner")).to_have_text("dana")
    assert set(page.locator("tbody .owner").all_inner_texts()) == {"dana"}
    expect(page.locator("#q")).to_be_focused()
    page.reload()
    expect(page.locator("#q")).to_have_value("dana")


def test_the_keyboard_goes_places(open_page: Open) -> None:
    page = open_page("/processes/")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).not_to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("d")

    expect(page).to_have_url(re.compile(r"/$"))


def test_the_theme_stays_as_chosen(open_page: Open) -> None:
    page = open_page("/")
    toggle = page.locator("[data-theme-toggle]")
    toggle.click()
    toggle.click()
    page.reload()

    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_mode_follows_on_a_page_without_figures(open_page: Open) -> None:
    page = open_page("/rules/")
    mode = page.locator("#region-mode")
    expect(mode).to_have_text("cooperative", timeout=20_000)
    operator = page.context.new_page()
    for chosen, shown in (("defensive", "defensive"), ("automatic", "cooperative")):
        operator.goto("/mode/")
        operator.get_by_label("Mode").first.select_option(chosen)
        operator.get_by_role("button", name="Set mode").click()

        expect(mode).to_have_text(shown, timeout=20_000)


# The message of the server when the order of the GPUs changes: the last one comes first.
SEND_ANOTHER_ORDER = """() => {
  const section = document.getElementById("gpus").cloneNode(true);
  const list = section.querySelector(".grid");
  list.prepend(list.lastElementChild);
  return htmx.swap({
    text: `<hx-partial hx-target="[id=gpus]" hx-swap="outerMorph">`
      + `${section.outerHTML}</hx-partial>`,
    sourceElement: document.body, target: document.body, swap: "none", request: {},
  });
}"""


def test_the_gpus_change_places_only_when_the_pointer_is_elsewhere(open_page: Open) -> None:
    page = open_page("/")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    order = "[...document.querySelector('#gpus .grid').children].map((card) => card.id)"
    page.locator(".gpu").first.hover()
    before = page.evaluate(order)
    page.evaluate(SEND_ANOTHER_ORDER)
    page.wait_for_timeout(300)
    assert page.evaluate(order) == before

    page.mouse.move(2, 2)
    expect(page.locator(".gpu").first).to_have_attribute("id", before[-1])
