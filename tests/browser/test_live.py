from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, StorageState, expect

from tests.browser.conftest import GPU_0, Open, open_incident
from tests.browser.test_every_page import PATHS
from tests.processes.service import Service

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
    figures = "[data-live^='g:'] [data-v='0']"
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
        """() => [...document.querySelectorAll('.b-row')].map((row) => [
            Number(row.querySelector("b[data-v='0']").textContent),
            parseFloat(row.querySelector("svg[data-v='0'] rect")?.getAttribute("width"))])
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
    owners = page.locator("tbody .owner")
    expect(owners.filter(has_not_text="dana")).to_have_count(0)
    assert set(owners.all_inner_texts()) == {"dana"}
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
    expect(mode).to_have_text("")
    operator = page.context.new_page()
    for chosen, shown in (("defensive", "defensive"), ("automatic", "")):
        operator.goto("/mode/")
        operator.get_by_label("Mode").first.select_option(chosen)
        operator.get_by_role("button", name="Set mode").click()

        expect(mode).to_have_text(shown, timeout=20_000)


# The message of the server that brings the whole board anew.
SEND_BOARD = """() => {
  const section = document.getElementById("gpus").cloneNode(true);
  for (const part of section.querySelectorAll("details")) part.removeAttribute("open");
  for (const part of section.querySelectorAll(".b-detail > div")) part.textContent = "";
  return htmx.swap({
    text: `<hx-partial hx-target="[id=gpus]" hx-swap="outerMorph">`
      + `${section.outerHTML}</hx-partial>`,
    sourceElement: document.body, target: document.body, swap: "none", request: {},
  });
}"""
DETAIL_0 = ".b-gpu:has([data-gpu-row='0']) .b-detail"


def test_the_detail_of_a_gpu_opens_below_its_row_and_survives_updates(open_page: Open) -> None:
    page = open_page("/")
    is_live(page)
    detail = page.locator(DETAIL_0)
    expect(detail).to_be_hidden()
    page.get_by_label("Details of GPU 0").click()
    expect(detail.locator(".gpu-figures").first).to_be_visible()
    page.evaluate(SEND_BOARD)
    page.wait_for_timeout(300)

    expect(detail.locator(".gpu-figures").first).to_be_visible()
    page.get_by_label("Details of GPU 0").click()
    page.evaluate(SEND_BOARD)
    expect(detail).to_be_hidden()


def test_without_javascript_a_row_opens_and_leads_to_the_page_of_its_gpu(
    chromium: Browser, service: Service, session: StorageState
) -> None:
    with chromium.new_context(
        base_url=service.address, java_script_enabled=False, storage_state=session
    ) as context:
        page = context.new_page()
        page.goto("/")
        page.get_by_label("Details of GPU 0").click()
        page.get_by_role("link", name="The page of GPU 0").click()
        page.wait_for_url("**/gpus/**")


def test_a_filter_of_the_board_stays_in_the_address(open_page: Open) -> None:
    page = open_page("/")
    # Few GPUs need no filter.
    expect(page.locator(".b-filter")).to_be_hidden()
    # Again and again, because an update of the board takes the class away.
    page.evaluate("setInterval(() => document.querySelector('.board').classList.add('many'), 20)")
    rows = page.locator(".b-row")
    shown = rows.count()
    page.locator(".b-filter").get_by_role("link", name="Free").click()
    expect(page).to_have_url(re.compile(r"\?show=free$"))
    free = page.locator(".b-cells[data-free]").count()

    assert page.locator(".b-row:visible").count() in (free - 1, free, free + 1)
    assert free < shown
    page.reload()
    expect(page.locator("#board")).to_have_attribute("data-show", "free")


# By its id, else its summary: the details of the page that are open, or closed.
DETAILS = """(open) => [...document.querySelectorAll("main details")]
  .filter((each) => each.open === open)
  .map((each) => each.id || each.querySelector("summary").textContent.trim())"""


def incident_page(page: Page, service: Service) -> str:
    """The address of the page of an open incident, which this host leaves alone."""
    open_incident(service, "with details")
    page.goto("/incidents/")
    page.locator("main").get_by_role("link", name="Detected GPU hog").first.click()
    page.wait_for_url(re.compile(r"/incidents/\d+/$"))
    return page.url


def batch_page(page: Page) -> str:
    """The address of the page of a batch that runs."""
    page.goto("/batches/")
    page.get_by_label("Command").fill("sleep 60")
    page.get_by_label("Items", exact=True).fill("a\nb")
    page.get_by_label("GPUs", exact=True).fill("0")
    page.get_by_role("button", name="Submit the batch").click()
    page.wait_for_url(re.compile(r"/batches/\d+/"))
    return page.url.partition("#")[0]


# Each page with details is open in a tab of its own, and all are updated at the same time.
@pytest.mark.timeout(600)
def test_all_that_a_reader_opened_stays_open_on_each_page(
    open_page: Open, service: Service
) -> None:
    page = open_page("/jobs/new/")
    page.get_by_label("Command").fill("sleep 300")
    page.get_by_label("GPUs", exact=True).fill("0")
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    gpu = page.context.new_page()
    gpu.goto("/")
    path = gpu.locator(GPU_0).get_attribute("href")
    paths = [*PATHS, str(path), page.url, incident_page(gpu, service), batch_page(gpu)]
    tabs: dict[str, Page] = {}
    opened: dict[str, set[str]] = {}
    for path in paths:
        tab = page.context.new_page()
        tab.goto(path)
        tab.evaluate(
            "() => document.querySelectorAll('main details').forEach((each) => each.open = true)"
        )
        opened[path] = set(tab.evaluate(DETAILS, True))
        if opened[path]:
            tabs[path] = tab
        else:
            tab.close()
    # Three polls of the pages that poll, and many messages of the live ones.
    page.wait_for_timeout(13_000)
    closed = {path: opened[path] & set(tab.evaluate(DETAILS, False)) for path, tab in tabs.items()}

    assert sum(map(len, opened.values())) > 20
    assert {path: names for path, names in closed.items() if names} == {}
