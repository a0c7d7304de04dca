"""A real browser before a real stack: web, dispatch and worker as `make up` starts them, one for all tests here."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.prepare import installed_browser, system_browser
from tests.stack.conftest import Stack

WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Per module: while Playwright is open its event loop runs, and Django refuses database work to later tests."""
    path = system_browser() or installed_browser()
    if path is None:
        pytest.skip("no Chromium here: install Debian's chromium, or run python -m playwright install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--disable-background-networking"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def stack(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    started = Stack(tmp_path_factory.mktemp("browser") / "home")
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.clear()


class Visitor:
    """A signed-in person's browser, which remembers everything that went wrong in it."""

    def __init__(self, chromium: Browser, base: str, state: Any, **options: Any) -> None:
        self.base = base
        self.context: BrowserContext = chromium.new_context(base_url=base, storage_state=state, **options)
        self.context.set_default_timeout(20_000)
        self.faults: list[str] = []
        self.page: Page = self.context.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))

    def _heard(self, message: ConsoleMessage) -> None:
        # A server that is being restarted refuses connections; that is said to the person, and is no fault of a page.
        if message.type in ("error", "warning") and "ERR_CONNECTION" not in message.text:
            self.faults.append(f"{message.type}: {message.text}")

    def go(self, path: str) -> Page:
        """Open a page."""
        self.page.goto(path)
        return self.page


@pytest.fixture(scope="module")
def state(chromium: Browser, stack: Stack) -> Any:
    """Cookies after signing in with the one-time link that the terminal shows."""
    found = re.search(r"http://127\.0\.0\.1:\d+(/sign-in/\S+)", stack.said())
    assert found, stack.said()
    visitor = Visitor(chromium, f"http://127.0.0.1:{stack.port}", None)
    page = visitor.go(found[1])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Overview").wait_for()
    assert visitor.faults == []
    kept = visitor.context.storage_state()
    visitor.context.close()
    return kept


@pytest.fixture
def visit(chromium: Browser, stack: Stack, state: Any) -> Iterator[Any]:
    """Opens signed-in browsers; at the end none may have seen an error or a violation of the policy."""
    opened: list[Visitor] = []

    def go(**options: Any) -> Visitor:
        options.setdefault("viewport", WIDE)
        opened.append(Visitor(chromium, f"http://127.0.0.1:{stack.port}", state, **options))
        return opened[-1]

    yield go
    for visitor in opened:
        visitor.context.close()
    assert [fault for visitor in opened for fault in visitor.faults] == []


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    return tmp_path
