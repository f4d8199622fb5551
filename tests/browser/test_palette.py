from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize("keys", ["Control+k", "Meta+k"])
def test_the_palette_finds_pages_and_users(keys: str, open_page: Open) -> None:
    page = open_page("/rules/")
    page.keyboard.press(keys)
    dialog = page.locator("#palette")
    expect(dialog).to_be_visible()
    expect(dialog).to_have_attribute("role", "dialog")
    page.keyboard.type("admin")
    expect(dialog.get_by_role("option").filter(has_text="user admin")).to_be_visible()
    dialog.get_by_role("combobox").fill("incid")
    expect(dialog.get_by_role("option").first).to_contain_text("Incidents")
    page.keyboard.press("Enter")
    page.wait_for_url("**/incidents/")


def test_the_palette_closes_with_escape_and_runs_actions(open_page: Open) -> None:
    page = open_page("/rules/")
    page.keyboard.press("Control+k")
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).not_to_be_visible()
    before = page.locator("html").get_attribute("data-theme")
    page.keyboard.press("Control+k")
    page.keyboard.type("theme")
    page.keyboard.press("Enter")

    expect(page.locator("html")).not_to_have_attribute("data-theme", before or "")


def test_g_and_a_letter_go_to_a_page(open_page: Open) -> None:
    page = open_page("/rules/")
    for letter, path in {"t": "timeline", "i": "incidents", "w": "windows", "u": "status"}.items():
        page.keyboard.press("g")
        page.keyboard.press(letter)
        page.wait_for_url(f"**/{path}/")
