"""A real gpucoord with a simulated server, and Debian's Chromium looking at it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import (
    Browser,
    Page,
    StorageState,
    ViewportSize,
    expect,
    sync_playwright,
)

from tests.browser.chromium import chromium_path
from tests.processes.service import Service, wait_until

WIDE: ViewportSize = {"width": 1400, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# The link to the page of a GPU that is always there: one of the simulated ones falls off the bus
# for a minute now and then.
GPU_0 = "[data-gpu-row='0'] .b-name a"
# On a busy machine, each awaited change comes at last too.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)
TELL_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """It has read its GPUs once: whichever test comes first finds the pages of a running one."""
    with Service(tmp_path_factory.mktemp("browser") / "data") as service:
        wait_until(lambda: has_use(service), 30, "the first use of a GPU")
        yield service


def has_use(service: Service) -> bool:
    with sqlite3.connect(service.database, timeout=10) as database:
        (has_one,) = database.execute("SELECT EXISTS (SELECT 1 FROM monitor_processuse)").fetchone()
    database.close()
    return bool(has_one)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser per module: while Playwright's loop runs, Django takes this thread for async."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=OPTIONS)
        yield browser
        browser.close()


OVERUSE = "Detected GPU hog: python (PID 4200001, alice) at 95 %"


def open_incident(service: Service, key: str = "by keyboard") -> None:
    """Write an incident of another host, which the controller of this one leaves alone."""
    at = datetime.now(UTC).replace(tzinfo=None).isoformat(" ")
    row = {
        "host": "elsewhere",
        "rule": "sustained",
        "key": key,
        "user": "alice",
        "severity": "warning",
        "text": OVERUSE,
        **dict.fromkeys(("since_at", "opened_at", "last_seen_at"), at),
        **dict.fromkeys(("waiting", "hog_spans"), "[]"),
        **dict.fromkeys(("is_muted", "waited_jobs", "waited_s"), 0),
        **dict.fromkeys(
            ("program", "container", "job_ref", "job_owner", "closed_by", "subject"), ""
        ),
        **dict.fromkeys(("acknowledged_by", "explanation"), ""),
    }
    marks = ", ".join("?" * len(row))
    with sqlite3.connect(service.database, timeout=10) as database:
        database.execute(
            f"INSERT INTO monitor_incident ({', '.join(row)}) VALUES ({marks})", [*row.values()]
        )
    database.close()


Open = Callable[..., Page]


def log_in_at(page: Page) -> None:
    page.get_by_label("User name").fill("admin")
    page.get_by_label("Password").fill("correct horse")
    page.get_by_role("button", name="Log in").click()


@pytest.fixture(scope="module")
def session(chromium: Browser, service: Service) -> StorageState:
    """The cookies of one login of the administrator."""
    with chromium.new_context(base_url=service.address) as context:
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto("/login/?next=/account/")
        log_in_at(page)
        page.wait_for_url("**/account/")
        return context.storage_state()


@pytest.fixture
def open_page(
    chromium: Browser, service: Service, request: pytest.FixtureRequest
) -> Iterator[Open]:
    """open_page("/jobs/"): a page of the administrator in a fresh browser, for this test alone.

    Whatever the page complains about in its console fails the test, unless it is in `expected`.
    """
    complaints: list[str] = []
    contexts = []

    def open_page(
        path: str = "/",
        size: ViewportSize = WIDE,
        log_in: bool = True,
        expected: tuple[str, ...] = (),
    ) -> Page:
        cookies = request.getfixturevalue("session") if log_in else None
        context = chromium.new_context(
            viewport=size, base_url=service.address, storage_state=cookies
        )
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        context.add_init_script(TELL_VIOLATIONS)
        page = context.new_page()

        def hear(text: str) -> None:
            if not any(known in text for known in expected):
                complaints.append(text)

        page.on("console", lambda said: hear(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: hear(str(error)))
        page.goto(path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints
