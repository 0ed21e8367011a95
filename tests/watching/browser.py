"""A headless Chromium of Debian's, driven as a person drives it; tests are skipped where it cannot be had."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NOT_HERE = "NOT TESTED: no browser (apt-get install chromium chromium-driver), or no Python package selenium"


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; the test is skipped where there is none."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip(NOT_HERE)
    webdriver = pytest.importorskip("selenium.webdriver", reason=NOT_HERE)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    # Tests may run as root and in a container without much of /dev/shm; nothing of the browser's own goes out.
    flags = "headless=new no-sandbox disable-dev-shm-usage disable-gpu no-first-run force-color-profile=srgb"
    for flag in flags.split():
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        browser.set_page_load_timeout(120)
        browser.set_script_timeout(120)
        yield browser
    finally:
        browser.quit()


def shape(browser: Any, width: int, height: int, *, dark: bool, still: bool = False) -> None:
    """Gives the page a screen of this size, and a person's wishes."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wishes = [
        {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
        {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wishes})


def picture(browser: Any, path: Path, *, whole: bool = False) -> None:
    """Writes a picture of what is seen, or of the whole page."""
    import base64

    asked = {"format": "png", "captureBeyondViewport": whole}
    if whole:
        size = browser.execute_script("return [innerWidth, document.documentElement.scrollHeight]")
        asked["clip"] = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
    path.write_bytes(base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", asked)["data"]))
