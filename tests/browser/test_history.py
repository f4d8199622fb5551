from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import GPU_0, PHONE, Open
from tests.browser.test_every_page import overflow
from tests.processes.service import Service

pytestmark = pytest.mark.browser


def gpu_page(open_page: Open, query: str = "?range=10min") -> Page:
    """A GPU's page, with some seconds of history at least."""
    page = open_page("/")
    path = page.locator(GPU_0).get_attribute("href")
    page.goto(f"{path}{query}")
    expect(page.locator("#history .chart").first).to_be_visible()
    return page


def test_pointing_at_a_chart_reads_all_of_them(open_page: Open) -> None:
    page = gpu_page(open_page)
    box = page.locator(".plot").first.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + 40)

    expect(page.locator(".readout").nth(0)).to_have_text(re.compile(r"\d %"))
    expect(page.locator(".readout").nth(2)).to_have_text(re.compile(r"\d W"))
    expect(page.locator("#readout-time")).to_have_text(re.compile(r"At \d\d:\d\d:\d\d"))


def test_arrow_keys_read_a_chart_too(open_page: Open) -> None:
    page = gpu_page(open_page)
    page.locator(".plot").first.focus()
    page.keyboard.press("ArrowLeft")
    first = page.locator("#readout-time").text_content()
    page.keyboard.press("ArrowLeft")

    expect(page.locator("#readout-time")).not_to_have_text(first or "")


def test_the_heat_strip_is_read_by_keys(open_page: Open) -> None:
    page = gpu_page(open_page)
    page.locator(".heat .cell").last.focus()
    now = page.locator("[data-heat-said]").text_content()
    # Two hours before: at the turn of an hour there are readings of the one before.
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")

    assert now
    assert now.startswith("GPU 0, ")
    expect(page.locator("[data-heat-said]")).to_have_text(re.compile("unknown"))


def test_a_time_of_ones_own_choice_stands_in_the_address(open_page: Open) -> None:
    page = gpu_page(open_page)
    page.get_by_text("Custom", exact=True).click()
    page.get_by_label("From").fill("2026-01-02T03:00")
    page.get_by_label("Until").fill("2026-01-02T05:00")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**range=custom**")

    assert "since=2026-01-02T03%3A00%3A00.000Z" in page.url
    expect(page.get_by_text("No readings in this time")).to_be_visible()
    expect(page.get_by_label("From")).to_have_value("2026-01-02T03:00")


def test_pages_of_people_and_hosts_fit_a_phone(open_page: Open) -> None:
    page = open_page("/users/alice/", size=PHONE, expected=("404",))
    assert overflow(page) <= 0

    # The text about a silent server is longer than that of a live page.
    page.route_web_socket("**/ws/live/**", lambda _: None)
    page.goto("/")
    page.locator(".b-host a").first.click()
    page.wait_for_url("**/hosts/**")
    expect(page.locator("#connection")).to_contain_text("no answer since")
    assert overflow(page) <= 0
    assert page.locator(".heat").is_visible()


def test_the_cells_of_the_heat_map_agree_with_their_heads_in_the_zone_of_the_browser(
    chromium: Browser, open_page: Open, service: Service
) -> None:
    session = open_page("/").context.storage_state()
    session["cookies"] = [c for c in session["cookies"] if c["name"] != "timezone"]
    with chromium.new_context(
        base_url=service.address, timezone_id="Asia/Tokyo", storage_state=session
    ) as context:
        page = context.new_page()
        page.goto("/")
        page.goto(page.locator(GPU_0).get_attribute("href") or "")
        heads = page.locator(".heat thead th").all_inner_texts()
        cell = page.locator(".heat .cell").first
        label, title = cell.get_attribute("aria-label"), cell.get_attribute("title")
        assert label
        assert title
        assert label.startswith(f"GPU 0, {heads[0]}:00 to ")
        utc = (int(heads[0]) - 9) % 24
        assert f"({utc:02}:00–{(utc + 1) % 24:02}:00 UTC)" in title


def test_the_readout_of_a_chart_has_utc_beside_the_time_of_the_browser(
    chromium: Browser, open_page: Open, service: Service
) -> None:
    session = open_page("/").context.storage_state()
    with chromium.new_context(
        base_url=service.address, timezone_id="Asia/Tokyo", storage_state=session
    ) as context:
        page = context.new_page()
        page.goto("/")
        page.goto(page.locator(GPU_0).get_attribute("href") or "")
        page.locator(".plot").first.focus()
        page.keyboard.press("ArrowLeft")
        readout = page.locator("#readout-time")
        expect(readout).to_have_text(re.compile(r"At \d\d:\d\d:\d\d \(\d\d:\d\d:\d\d UTC\)"))
        here, there = re.findall(r"(\d\d):\d\d:\d\d", readout.inner_text())
        assert (int(here) - int(there)) % 24 == 9
        title = readout.get_attribute("title") or ""
        assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d {there}:\d\d:\d\d UTC", title)
        label = page.locator(".axis-x text, text[data-time]").first
        assert (label.locator("title").text_content() or "").endswith(" UTC")


def test_thousands_of_times_cost_little_each_second(open_page: Open) -> None:
    page = open_page("/events/")
    metrics = page.context.new_cdp_session(page)
    metrics.send("Performance.enable")

    def script_s() -> float:
        known = metrics.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in known if each["name"] == "ScriptDuration"))

    page.evaluate(
        """() => {
          const at = (n) => new Date(1.7e12 + 36e5 * n).toISOString().slice(0, 19) + "+00:00";
          const fragment = document.createDocumentFragment();
          for (let n = 0; n < 6000; n += 1) {
            const cell = document.createElement("a");
            const [begin, end] = [at(n % 24), at(n % 24 + 1)];
            cell.dataset.label = `GPU ${n % 64}, {hm:${begin}} to {hm:${end}}: idle`;
            cell.dataset.utc = "UTC";
            fragment.append(cell);
          }
          const detail = { tasks: [{ fragment }] };
          document.dispatchEvent(new CustomEvent("htmx:before:swap", { detail }));
          document.querySelector("main").append(fragment);
        }"""
    )
    before = script_s()
    page.wait_for_timeout(3000)

    assert page.locator("main a[data-label]").first.get_attribute("aria-label")
    # 12 ms on a quiet machine, 370 if each second fills all texts again.
    assert script_s() - before < 0.12
