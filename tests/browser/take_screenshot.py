"""Makes the README's pictures from the demo: python -m tests.browser.take_screenshot."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright

from tests.processes.service import ROOT, wait_until

FOLDER = ROOT / ".github"
PASSWORD = "only for this picture"
# Long enough for the demo's jobs to have drawn something.
SETTLE_MS = 20_000


@dataclass(frozen=True, slots=True)
class Picture:
    """A page of the demo, and the size of the window that shows its first screen."""

    name: str
    path: str
    size: ViewportSize


PICTURES = (
    Picture("dashboard", "", {"width": 1400, "height": 960}),
    Picture("timeline", "timeline/", {"width": 1400, "height": 760}),
    Picture("report", "reports/?last=30d", {"width": 1400, "height": 1000}),
)


@contextmanager
def demo() -> Iterator[str]:
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpucoord_site", "demo", "--port", "0"],
            env={**os.environ, "GPUCOORD_ADMIN_PASSWORD": PASSWORD, "GPUCOORD_NODE": "gpubox"},
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

        def address() -> str | None:
            found = re.search(r"is at (http://\S+/)", Path(log.name).read_text())
            return found[1] if found else None

        try:
            yield wait_until(address, 120, "an address")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with demo() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(locale="en-GB")
        page.goto(f"{address}login/")
        page.fill("[name=username]", "admin")
        page.fill("[name=password]", PASSWORD)
        page.click("button[type=submit]")
        page.wait_for_timeout(SETTLE_MS)
        for picture in PICTURES:
            page.set_viewport_size(picture.size)
            page.goto(f"{address}{picture.path}")
            # The first live values, and charts that take the size of the window.
            page.wait_for_timeout(3_000)
            page.screenshot(path=FOLDER / f"{picture.name}.png")
        browser.close()


if __name__ == "__main__":
    main()
