from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open

pytestmark = pytest.mark.browser


def cell(page: Page, row: int, day: int) -> tuple[float, float, float]:
    """Left edge, middle and width of a cell of the calendar."""
    box = page.locator("#calendar tbody tr").nth(row).locator("td").nth(day).bounding_box()
    assert box
    return box["x"], box["y"] + box["height"] / 2, box["width"]


def test_gpus_and_hours_are_requested_by_drag(open_page: Open) -> None:
    page = open_page("/windows/")
    expect(page.locator("#selection")).to_contain_text("Drag over GPUs")
    left, top, wide = cell(page, 1, 2)
    _, bottom, _ = cell(page, 2, 2)
    page.mouse.move(left + wide * 9.5 / 24, top)
    page.mouse.down()
    page.mouse.move(left + wide * 16.5 / 24, bottom, steps=4)
    page.mouse.up()
    expect(page.locator("#selection")).to_contain_text("GPU 1 to GPU 2")
    expect(page.locator("#selection")).to_contain_text("09:00–17:00")
    page.get_by_role("link", name="Request", exact=True).click()

    page.wait_for_url("**/windows/ask/**")
    assert page.locator("[name=start]").input_value() == "09:00"
    assert page.locator("[name=end]").input_value() == "17:00"
    assert page.locator("[name=gpus]:checked").count() == 2
    assert page.locator("[name=days]:checked").count() == 1


def test_an_operator_s_window_is_added_and_withdrawn_by_keyboard(open_page: Open) -> None:
    page = open_page("/windows/")
    page.locator("#calendar a[tabindex='0']").focus()
    for key in ("ArrowDown", "PageDown", "ArrowRight", "Shift+ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator("#selection")).to_contain_text("10:00–12:00")
    page.keyboard.press("Enter")
    page.wait_for_url("**/windows/ask/**")
    page.get_by_role("button", name="Add the time window").press("Enter")
    expect(page.locator("#toasts")).to_contain_text("Approved: ")
    assert page.locator("#calendar rect.kept").count() > 0

    page.get_by_role("button", name="Withdraw").first.press("Enter")
    question = page.get_by_role("dialog", name="Withdraw")
    expect(question).to_be_visible()
    page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    page.get_by_role("button", name="Withdraw").first.press("Enter")
    expect(question.get_by_role("button", name="Withdraw")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#toasts")).to_contain_text("Withdrawn: ")
