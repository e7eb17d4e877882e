"""A real browser without a window: Debian's Chromium, driven by Selenium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DRIVERS = ("/usr/bin/chromedriver", "/usr/lib/chromium-browser/chromedriver")
SIZE = (1360, 860)


def missing() -> str:
    """Why no page can be opened here; "" where one can."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    if shutil.which("chromium") is None:
        return "chromium is not installed: apt-get install chromium chromium-driver"
    if not any(Path(path).is_file() for path in DRIVERS):
        return "chromedriver is not installed: apt-get install chromium-driver"
    return ""


@contextmanager
def browser() -> Iterator[Any]:
    """A fresh one, which never asks the network for a driver."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(shutil.which("chromium"))
    for word in (
        "--headless=new",
        "--no-sandbox",  # containers run as root
        "--disable-dev-shm-usage",
        "--use-gl=angle",
        "--use-angle=swiftshader",
        "--enable-unsafe-swiftshader",
        "--hide-scrollbars",
        f"--window-size={SIZE[0]},{SIZE[1]}",
    ):
        options.add_argument(word)
    driver = next(path for path in DRIVERS if Path(path).is_file())
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        chrome.set_script_timeout(60)
        yield chrome
    finally:
        chrome.quit()


def text_of(chrome: Any, name: str) -> str:
    """The text of the element with this id; "" while there is none."""
    script = "const e = document.getElementById(arguments[0]); return e ? e.textContent : ''"
    return str(chrome.execute_script(script, name))


def button(chrome: Any, label: str) -> Any:
    """The button with this text."""
    from selenium.webdriver.common.by import By

    return chrome.find_element(By.XPATH, f"//button[normalize-space(.)='{label}']")


def field(chrome: Any) -> Any:
    """The instruction's text field."""
    from selenium.webdriver.common.by import By

    return chrome.find_element(By.XPATH, "//form//input[contains(@class, 'TextInput-input')]")
