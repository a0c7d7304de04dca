"""Before the tests: say what will not run here and why, and get a browser if there is none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

INSTALL_LIMIT_S = 300
SYSTEM_NAMES = ("chromium", "chromium-browser", "google-chrome")


def system_browser() -> str | None:
    """Path of the system's Chromium."""
    return next((path for path in map(shutil.which, SYSTEM_NAMES) if path), None)


def installed_browser() -> str | None:
    """Path of the Chromium that Playwright installed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def install_browser() -> None:
    """Let Playwright download its Chromium; a failure only means that browser tests are skipped."""
    argv = [sys.executable, "-m", "playwright", "install", "chromium"]
    try:
        subprocess.run(argv, timeout=INSTALL_LIMIT_S, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return


def main() -> None:
    """Never fails: each line only says what was found."""
    browser = system_browser() or installed_browser()
    if browser is None:
        print("No Chromium found; asking Playwright to install one ...", flush=True)
        install_browser()
        browser = installed_browser()
    if browser is None:
        print("BROWSER TESTS DO NOT RUN: no Chromium here, and Playwright could not install one.")
    else:
        print(f"Browser tests use {browser}.")
    if not os.environ.get("HEADWAY_POSTGRES_URL"):
        print("PostgreSQL tests do not run: HEADWAY_POSTGRES_URL names no server.")
    if not os.environ.get("HEADWAY_TRACES"):
        print("Trace tests do not run: HEADWAY_TRACES names no folder of public trace slices.")


if __name__ == "__main__":
    main()
