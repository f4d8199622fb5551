from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import PHONE, Open

pytestmark = pytest.mark.browser
PATHS = [
    "/",
    "/processes/",
    "/jobs/",
    "/jobs/new/",
    "/shares/",
    "/windows/",
    "/windows/ask/",
    "/events/",
    "/rules/",
    "/incidents/",
    "/users/admin/",
    "/status/",
    "/mode/",
]


def overflow(page: Page) -> int:
    """How many pixels the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))


@pytest.mark.parametrize("path", PATHS)
def test_it_fits_a_phone(path: str, open_page: Open) -> None:
    page = open_page(path, size=PHONE)
    page.wait_for_timeout(300)

    assert overflow(page) <= 0


def test_the_gpu_page_fits_a_phone(open_page: Open) -> None:
    page = open_page("/", size=PHONE)
    page.locator(".gpu h2 a").first.click()
    page.wait_for_url("**/gpus/**")

    assert overflow(page) <= 0


@pytest.mark.parametrize("path", PATHS)
def test_it_says_that_it_is_simulated(path: str, open_page: Open) -> None:
    page = open_page(path)

    assert page.locator(".sim-banner").is_visible()
    assert page.title().startswith("[simulated] ")


def test_login_and_errors_are_in_style(open_page: Open) -> None:
    page = open_page("/login/", log_in=False)
    assert page.locator("form.login").is_visible()

    page = open_page("/")
    page.goto("/status/")
    assert page.locator("h1").is_visible()


def test_every_control_can_be_named_and_reached(open_page: Open) -> None:
    page = open_page("/")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('a, button, input:not([type=hidden]), select')]
            .filter((e) => !e.textContent.trim() && !e.ariaLabel && !e.labels?.length)
            .map((e) => e.outerHTML)"""
    )
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    page.keyboard.press("Tab")

    assert nameless == []
    assert len(ids) == len(set(ids))
    assert page.evaluate("document.activeElement.className") == "skip"
