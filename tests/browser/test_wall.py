"""The wall display: it fits its screen, is legible, dims at night, and marks old data."""

from __future__ import annotations

import pytest
from playwright.sync_api import ViewportSize, expect

from tests.browser.conftest import Open
from tests.browser.test_live import is_live

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FULL_HD: ViewportSize = {"width": 1920, "height": 1080}
FOUR_K: ViewportSize = {"width": 3840, "height": 2160}
# With as many rows as a server with so many GPUs has: the lower edge of the lowest row and the size
# of the letters, both as parts of the height; the height of a row in letters; whether all fit.
MEASURE = """(count) => {
  const list = document.querySelector(".tl-rows"), row = list.querySelector(".b-gpu");
  document.querySelector(".board").classList.toggle("many", count > 16);
  while (list.querySelectorAll(".b-gpu").length < count) list.append(row.cloneNode(true));
  document.dispatchEvent(new Event("htmx:after:swap"));
  const rows = [...list.querySelectorAll(".b-row")], root = document.documentElement;
  const boxes = rows.map((each) => each.getBoundingClientRect());
  const letter = parseFloat(getComputedStyle(row.querySelector(".b-name a")).fontSize);
  return [Math.max(...boxes.map((box) => box.bottom)) / innerHeight, letter / innerHeight,
    Math.min(...boxes.map((box) => box.height)) / letter,
    root.scrollHeight <= innerHeight && root.scrollWidth <= innerWidth];
}"""


@pytest.mark.parametrize("count", [8, 16, 64])
@pytest.mark.parametrize("size", [FULL_HD, FOUR_K], ids=["1080p", "4K"])
def test_all_gpus_fit_the_screen_in_letters_that_are_read_from_afar(
    size: ViewportSize, count: int, open_page: Open
) -> None:
    page = open_page("/?kiosk", size=size)
    expect(page.locator("[data-timeline]")).to_be_visible()
    lowest, letter, room, fits = page.evaluate(MEASURE, count)

    assert fits
    assert lowest <= 1
    assert letter >= (0.026 if count <= 16 else 0.016)
    assert room >= 1.2


def test_it_has_neither_menu_nor_regions_and_keeps_the_connection(open_page: Open) -> None:
    page = open_page("/?kiosk", size=FULL_HD)
    is_live(page)

    for hidden in (".nav", ".menu", "#region-queue", "#region-incidents", ".b-more"):
        expect(page.locator(hidden).first).to_be_hidden()
    expect(page.locator("#connection")).to_be_visible()


@pytest.mark.parametrize(("hour", "is_night"), [(12, False), (23, True), (3, True), (6, False)])
def test_it_dims_at_night(hour: int, is_night: bool, open_page: Open) -> None:
    page = open_page("/rules/", size=FULL_HD)
    page.add_init_script(f"Date.prototype.getHours = () => {hour};")
    page.goto("/?kiosk")

    assert page.evaluate("document.body.classList.contains('is-night')") is is_night
    theme = page.evaluate("document.documentElement.dataset.theme")
    assert (theme == "dark") is is_night


def test_old_data_is_said_across_the_screen(open_page: Open) -> None:
    page = open_page("/?kiosk", size=FULL_HD)
    is_live(page)
    small = page.locator("#connection").bounding_box()
    page.evaluate("document.body.classList.add('is-stale')")
    large = page.locator("#connection").bounding_box()

    assert small
    assert large
    assert large["width"] == FULL_HD["width"] > 3 * small["width"]
    assert large["height"] > 50
