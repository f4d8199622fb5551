"""Ten tasks of users and operators: python -m tests.bench.bench_tasks ADDRESS PASSWORD.

ADDRESS is that of `gpucoord demo`, PASSWORD the one that it prints. Each task is done in Chromium
by the labels that a person reads, at the first try. Clicks and fields are counted; the seconds are
those of a hand that knows the pages, so they are the time of the pages.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable

from playwright.sync_api import Browser, Locator, Page, sync_playwright

from tests.browser.conftest import OPTIONS, WIDE

PATIENCE_MS = 20_000


class Hand:
    """Clicks and fills on one page, and counts them."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = self.fields = 0

    def click(self, name: str, role: str = "link", within: str = "body") -> None:
        self.press(self.page.locator(within).get_by_role(role, name=name).first)  # type: ignore[arg-type]

    def press(self, place: Locator) -> None:
        self.clicks += 1
        place.click()

    def fill(self, label: str, text: str) -> None:
        self.fields += 1
        self.page.get_by_label(label, exact=True).first.fill(text)

    def choose(self, label: str, value: str) -> None:
        self.fields += 1
        self.page.get_by_label(label, exact=True).first.select_option(value)

    def sees(self, text: str, within: str = "main") -> None:
        self.page.locator(within).get_by_text(re.compile(text)).first.wait_for()

    def menu(self, name: str) -> None:
        self.press(self.page.locator("details.menu > summary").first)
        self.click(name, within="details.menu")


def first_look(hand: Hand) -> None:
    hand.sees("GPU", within="#summary, main")
    hand.page.locator(".b-row .owner").first.wait_for()


def submit(hand: Hand) -> None:
    hand.click("Submit", within="header")
    hand.fill("Command", "echo step 1; sleep 600")
    hand.fill("GPUs", "0")
    hand.click("Submit the job", "button")
    hand.page.locator("pre.log").get_by_text("step 1").wait_for()
    hand.press(hand.page.locator("#cancel"))
    hand.click("Cancel the job", "button")
    hand.sees("cancelled")


def why(hand: Hand) -> None:
    waiting = hand.page.locator("#region-queue li").filter(has_text="waiting")
    hand.press(waiting.last.locator("a.name"))
    hand.page.wait_for_url(re.compile(r"/jobs/\d+/"))
    hand.sees("asks for|less than|are taken|exceeds")


def waste(hand: Hand) -> None:
    hand.click("Reports", within="header")
    hand.click("Last week", within="main")
    hand.sees("GPU-hours held were not used")
    with hand.page.expect_download() as download:
        hand.click("PDF", within="main")
    assert download.value.suggested_filename.endswith(".pdf")


def quota(hand: Hand) -> None:
    hand.menu("People")
    hand.click("bob", within="main table")
    share = hand.page.locator("input[name=share_pct]")
    share.fill("25")
    hand.fields += 1
    hand.press(hand.page.locator("form", has=share).get_by_role("button").first)
    hand.page.locator("#toasts .toast").first.wait_for()


def ask_model(hand: Hand) -> None:
    hand.menu("Models")
    hand.press(hand.page.locator("main").get_by_role("link", name="Ask").first)
    hand.fill("Prompt", "Say hello.")
    hand.click("Send", "button", within="main")
    hand.page.locator("#answer").wait_for()


def batch(hand: Hand) -> None:
    hand.menu("Batches")
    hand.choose("Script", "extract_keyframes")
    hand.fill("Folder for the images", "/tmp/frames")
    hand.fill("Items", "/data/a.mp4\n/data/b.mp4")
    hand.click("Submit the batch", "button")
    hand.page.wait_for_url(re.compile(r"/batches/\d+/"))


def complaint(hand: Hand) -> None:
    hand.press(hand.page.locator("#region-alerts a"))
    hand.press(hand.page.locator("main table a[href^='/incidents/']").first)
    hand.page.wait_for_url(re.compile(r"/incidents/\d+/"))
    hand.sees("Evidence")
    hand.page.get_by_label(re.compile("^Message to")).wait_for()
    hand.page.locator("#without").wait_for()


def new_user(hand: Hand) -> None:
    hand.menu("People")
    hand.click("Add people", within="main")
    hand.page.locator("[name=others]").fill(f"new{int(time.time()) % 10_000}")
    hand.fields += 1
    hand.click("Add and invite", "button")
    hand.page.get_by_text("/login/invitation/").first.wait_for()


def command_line(hand: Hand) -> None:
    hand.menu("Documentation")
    hand.click("Command line", within="main")
    hand.sees("gpucoord submit")


TASKS: tuple[tuple[str, Callable[[Hand], None]], ...] = (
    ("a first look at the GPUs", first_look),
    ("b submit a job, see its log, cancel it", submit),
    ("c see why a job waits", why),
    ("d see who wasted GPU-hours last week, as PDF", waste),
    ("e change a quota", quota),
    ("f ask a model", ask_model),
    ("g submit a batch with a script", batch),
    ("h open the incident of a complaint", complaint),
    ("i add and invite a user", new_user),
    ("j find the commands", command_line),
)


def main() -> None:
    address, password, *chosen = sys.argv[1:]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=OPTIONS)
        page = _logged_in(browser, address, password)
        for title, task in TASKS:
            if not chosen or title[0] in chosen:
                print(_row(page, address, title, task), flush=True)
        browser.close()


def _row(page: Page, address: str, title: str, task: Callable[[Hand], None]) -> str:
    page.goto(address)
    hand, begun = Hand(page), time.monotonic()
    try:
        task(hand)
        result = "done"
    except Exception as error:
        result = f"failed: {str(error).splitlines()[0]}"
    return (
        f"| {title} | {hand.clicks} | {hand.fields} | {time.monotonic() - begun:.1f} | {result} |"
    )


def _logged_in(browser: Browser, address: str, password: str) -> Page:
    page = browser.new_page(viewport=WIDE)
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{address}login/")
    page.get_by_label("User name").fill("admin")
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(address)
    return page


if __name__ == "__main__":
    main()
