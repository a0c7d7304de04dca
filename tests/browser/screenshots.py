"""Pictures of every page of a running Headway at two widths in both colour schemes, to be looked at.

    python -m tests.browser.screenshots SIGN_IN_LINK FOLDER [--run RUN_PATH]

Signs in with a one-time link, finds one example of everything in the lists, and writes ``NAME-WIDTH-SCHEME.png``.
With ``--run`` it takes only ``screenshot.png``, the picture of a live run's page for the README. Exit status 1 when a
page is wider than its window or reports an error.
"""

import argparse
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

from tests.prepare import installed_browser, system_browser

WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
PAGES = {
    "home": "/",
    "experiments": "/experiments/",
    "experiment-new": "/experiments/new/",
    "runs": "/runs/",
    "workloads": "/workloads/",
    "workload-new": "/workloads/new/",
    "traces": "/traces/",
    "trace-new": "/traces/new/",
    "policies": "/policies/",
    "policy-new": "/policies/new/",
    "fleet": "/fleet/",
    "account": "/account/",
    "not-found": "/nowhere/",
}
EXAMPLES = {"experiment": "/experiments/", "run": "/runs/?state=succeeded", "workload": "/workloads/",
            "trace": "/traces/", "policy": "/policies/", "profile": "/fleet/"}  # fmt: skip
SETTLE_MS = 900
TALLEST = 6000


def sign_in(browser: Browser, link: str) -> Any:
    """Cookies of a session."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(link)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Overview").wait_for()
    state = context.storage_state()
    context.close()
    return state


def find_examples(page: Page, base: str) -> dict[str, str]:
    """Path of the first row of each list that has one."""
    found = {}
    for name, listing in EXAMPLES.items():
        page.goto(base + listing)
        row = page.locator("tr[data-href]").first
        if row.count():
            found[name] = str(row.get_attribute("data-href"))
    return found


def take(page: Page, url: str, file: Path, width: int) -> list[str]:
    """One whole page; what is wrong with it."""
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(url)
    page.wait_for_timeout(SETTLE_MS)
    over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    height = min(TALLEST, page.evaluate("document.documentElement.scrollHeight"))
    page.set_viewport_size({"width": width, "height": max(900, height)})  # charts are drawn only while they are seen
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=file)
    return [f"{file.stem}: {over} px wider than its window"] if over > 0 else []


def take_all(browser: Browser, base: str, state: Any, folder: Path, scheme: str) -> list[str]:
    """Every page in one colour scheme at each width; everything that is wrong."""
    faults: list[str] = []
    context = browser.new_context(storage_state=state, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    pages = PAGES | find_examples(page, base)
    for width in WIDTHS:
        for name, path in pages.items():
            faults += take(page, base + path, folder / f"{name}-{width}-{scheme}.png", width)
    context.close()
    return faults


def take_live_run(browser: Browser, base: str, state: Any, path: str, folder: Path) -> None:
    """The picture of a run's page while its charts move."""
    context = browser.new_context(storage_state=state, viewport={"width": 1280, "height": 960})
    page = context.new_page()
    page.goto(base + path)
    page.wait_for_timeout(8000)
    page.screenshot(path=folder / "screenshot.png")
    context.close()


def main() -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("link", help="one-time sign-in link, as `make up` shows it")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", help="path of a running run, such as /runs/run_.../")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    address = urlsplit(options.link)
    base = f"{address.scheme}://{address.netloc}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=system_browser() or installed_browser())
        state = sign_in(browser, options.link)
        if options.run:
            take_live_run(browser, base, state, options.run, options.folder)
            return 0
        faults = [fault for scheme in SCHEMES for fault in take_all(browser, base, state, options.folder, scheme)]
    print("\n".join(faults) or f"nothing wrong; look at {options.folder}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
