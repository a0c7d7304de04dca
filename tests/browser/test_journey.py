"""What people do, in a real browser against the whole stack: submit, watch, read, come back."""

import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import NARROW, WIDE, Visitor
from tests.stack.conftest import Stack, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

REAL = """
name: live on real kernels
workload:
  arrivals: {gamma: {rate_rps: 2, burstiness: 0.25}}
  lengths: {prompt: {fixed: 24}, output: {fixed: 12}}
  requests: 30
target: {torch: {model: demo-s, device: cpu, threads: 1, kv_blocks: 128}}
arms:
  baseline: {policy: static}
  continuous: {policy: vllm_v1, batch: {token_budget: 128}}
repeats: 1
"""


def submit_yaml(page: Page, text: str) -> str:
    """Submit an experiment in the YAML view; the path of its page."""
    page.goto("/experiments/new/")
    page.get_by_role("button", name="YAML").click()
    page.locator("textarea[name=yaml]").fill(text)
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"/experiments/exp_"))
    return page.url


def reading(page: Page, chart: str) -> str:
    """What a chart says to those who do not see it."""
    return str(page.locator(f"[data-chart={chart}] canvas").get_attribute("aria-label"))


def changes(look: Callable[[], str], limit_s: float = 30) -> list[str]:
    """The first three different readings."""
    seen = [look()]

    def enough() -> bool:
        if look() != seen[-1]:
            seen.append(look())
        return len(seen) >= 3

    wait_for(enough, f"three different readings; seen {seen}", limit_s)
    return seen


def samples_said(page: Page) -> int:
    """Number of samples that the page holds, as it says."""
    found = re.match(r"([\d,]+) samples", page.locator("[data-live-note]").inner_text())
    return int(found[1].replace(",", "")) if found else 0


def table_of(page: Page, chart: str) -> str:
    """The figures behind a chart, as the page shows them in its table."""
    return page.locator(f"[data-chart={chart}] .table tbody").inner_text()


def test_a_first_visit_from_the_link_to_the_verdict(chromium: Browser, stack: Stack) -> None:
    """A newcomer: signs in by the one-time link, presses the one button, watches, reads the answer."""
    base = f"http://127.0.0.1:{stack.port}"
    visitor = Visitor(chromium, base, None, viewport=WIDE)
    page = visitor.go(stack.manage("sign_in_link", "admin", "--base", base).strip())
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Run the first experiment").click()
    page.wait_for_url(re.compile(r"/experiments/exp_"))
    experiment = page.url
    page.locator("a[data-run]", has_text="Running").first.click(timeout=60_000)
    expect(page.locator("[data-live-state]")).to_have_text("Live")
    page.locator("[data-chart=done]").scroll_into_view_if_needed()
    changes(lambda: reading(page, "done"))
    page.locator("[data-chart=done] [data-table-toggle]").click()
    changes(lambda: table_of(page, "done"))
    page.goto(experiment)
    verdict = page.locator(".verdict")
    expect(verdict.get_by_role("heading", name="continuous against baseline")).to_be_visible(timeout=150_000)
    expect(verdict.locator("h2")).to_contain_text(re.compile("accept|tune|reject", re.IGNORECASE))
    expect(verdict.locator(".gates tbody tr")).to_have_count(2)  # the goal it was submitted with
    expect(verdict.get_by_role("heading", name="Why")).to_be_visible()
    visitor.context.close()
    assert visitor.faults == []


def test_submit_watch_and_read_the_verdict(visit: Any) -> None:
    """From the form to the verdict; a chart moves while its run is served by a real transformer."""
    visitor = visit()
    page: Page = visitor.page
    url = submit_yaml(page, REAL)
    expect(page.locator("[data-live-state]")).to_have_text("Live", timeout=60_000)
    page.locator("[data-chart=done]").scroll_into_view_if_needed()  # charts are drawn only while they are seen
    changes(lambda: reading(page, "done"))
    assert "no samples yet" not in reading(page, "queue")
    ended = page.locator("a[data-run]", has_text="Succeeded").first
    expect(ended).to_contain_text(re.compile(r"(\d+) of \1\b"), timeout=60_000)  # its last count, not the one before
    expect(page.get_by_role("heading", name="continuous against baseline")).to_be_visible(timeout=120_000)
    expect(page.locator("[data-experiment-status]")).to_have_text(re.compile("Decided"))
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text("TTFT p95")
    expect(verdict.locator("svg.interval").first).to_be_visible()
    expect(page.locator("[data-overlay] .legend li")).to_have_count(2)
    page.get_by_role("link", name="Open as a filled-in form").first.click()
    expect(page.get_by_label("Name", exact=True).first).to_have_value(re.compile(r"\w"))
    page.goto(url)
    page.locator("a[data-run]").first.click()
    expect(page.locator("[data-live-state]")).to_have_text("Ended")
    toggle = page.locator("[data-chart=queue] [data-table-toggle]")
    toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "true")
    expect(page.locator("[data-chart=queue] .table tbody tr").first).to_be_visible()
    with page.expect_download() as caught:
        page.get_by_role("link", name="summary.json").click()
    assert caught.value.suggested_filename.endswith("summary.json")


def test_a_live_page_outlives_the_web_server(visit: Any, stack: Stack) -> None:
    """The server is killed while a run is watched; the page resumes by itself, with every sample once."""
    page: Page = visit().page
    submit_yaml(page, REAL.replace("live on", "outliving on"))
    expect(page.locator("[data-live-state]")).to_have_text("Live", timeout=60_000)
    run = page.locator("a[data-run]", has_text="Running").first
    path = str(run.get_attribute("href"))
    page.goto(path)
    expect(page.locator("[data-live-state]")).to_have_text("Live")
    wait_for(lambda: samples_said(page) > 5, "some samples")
    web = next(pgid for pgid in stack.registered() if "uvicorn" in command_of(pgid))
    os.killpg(web, signal.SIGKILL)
    before = samples_said(page)
    wait_for(lambda: samples_said(page) > before + 5, "samples after the restart", 60)
    expect(page.locator("[data-live-state]")).to_have_text("Ended", timeout=60_000)
    held = samples_said(page)  # before the page draws itself again with the summary
    series = page.request.get(f"/live{path}series/").json()
    assert held == series["n"] == series["last_seq"]


def command_of(pgid: int) -> str:
    try:
        with open(f"/proc/{pgid}/cmdline") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""


def test_forms_keep_their_place_and_name_their_mistakes(visit: Any) -> None:
    visitor = visit()
    page: Page = visitor.go("/policies/new/")
    page.get_by_label("Preset").select_option("static")
    expect(page.get_by_label("Max wait (ms)")).to_be_visible()
    page.get_by_label("Preset").select_option("vllm_v1")
    expect(page.get_by_label("Long prefill cap")).to_be_visible()
    expect(page.get_by_label("Max wait (ms)")).to_have_count(0)
    page.locator("input[name=name]").fill("from a browser")
    page.get_by_label("Token budget").fill("many")
    page.get_by_role("button", name="Save").last.click()
    expect(page.get_by_role("alert")).to_contain_text("batch.token_budget")
    expect(page.get_by_label("Token budget")).to_have_attribute("aria-invalid", "true")
    assert [fault for fault in visitor.faults if "status of 422" not in fault] == []
    visitor.faults.clear()  # Chromium notes every refused form
    page.get_by_label("Token budget").fill("256")
    page.get_by_role("button", name="Save").last.click()
    expect(page.get_by_role("heading", name="from a browser v1")).to_be_visible()


def test_rows_are_added_in_place_and_previewed(visit: Any) -> None:
    page: Page = visit().go("/workloads/new/")
    page.locator("input[name=name]").fill("previewed")
    page.get_by_role("button", name="Add tier").click()
    expect(page.locator("input[name='tiers.1.share']")).to_be_visible()
    page.locator("input[name='tiers.0.share']").fill("90%")
    page.locator("input[name='tiers.1.share']").fill("10%")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("heading", name="What it offers")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Arrivals, requests per second"))).to_be_visible()
    expect(page.locator("input[name=name]")).to_have_value("previewed")


def test_the_keyboard_reaches_everything(visit: Any) -> None:
    page: Page = visit().go("/experiments/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("zzz?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page.get_by_text("No experiment matches these filters.")).to_be_visible()
    page.locator("body").click(position={"x": 640, "y": 5})
    page.keyboard.press("g")
    page.keyboard.press("w")
    expect(page.get_by_role("heading", name="Workloads")).to_be_visible()


def test_nothing_destructive_happens_without_a_question(visit: Any) -> None:
    page: Page = visit().page
    submit_yaml(page, REAL.replace("live on", "cancelled on"))
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog", name="Are you sure?")
    expect(dialog).to_contain_text("There will be no verdict")
    dialog.get_by_role("button", name="Keep it").click()
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog.get_by_role("button", name="Cancel the experiment").click()
    expect(page.locator("[data-experiment-status]")).to_have_text(re.compile("Cancelled"), timeout=40_000)
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)
    unplayed = page.locator("a[data-run]", has_text="0 of 30").last.locator("progress")
    expect(unplayed).to_have_js_property("value", 0)  # a bar says what was done, also of a run that has ended
    page.locator("a[data-run]").first.click()
    expect(page.locator("[data-live-state]")).to_have_text("Ended")
    expect(page.locator("[data-live-pause]")).to_be_hidden()


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["1280", "390"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_its_window(viewport: dict[str, int], scheme: str, visit: Any) -> None:
    visitor = visit(viewport=viewport, color_scheme=scheme)
    page: Page = visitor.go("/experiments/")
    first = str(page.locator("tr[data-href]").first.get_attribute("data-href"))
    places = ["/", "/experiments/", "/experiments/new/", first, "/runs/", "/workloads/", "/workloads/new/", "/traces/"]
    places += ["/traces/new/", "/policies/", "/policies/new/", "/fleet/", "/account/", "/nowhere/"]
    for place in places:
        page.goto(place)
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, f"{place} is {over} px wider than its window"
    visitor.faults = [fault for fault in visitor.faults if "404" not in fault]


def test_the_colour_switch_stays(visit: Any) -> None:
    page: Page = visit().go("/")
    switch = page.get_by_role("button", name=re.compile("Colours"))
    switch.click()
    switch.click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).colorScheme || 'dark'")


def test_chart_js_is_the_pinned_one(visit: Any) -> None:
    page: Page = visit().go("/runs/")
    page.locator("tr[data-href] a").first.click()
    page.locator("[data-chart=queue] .legend li").first.wait_for()  # the first chart is drawn
    assert page.evaluate("Chart.version") == "4.4.0"
    assert page.evaluate("[...document.scripts].some((s) => s.src.endsWith('/static/unfold/js/chart/chart.js'))")


def test_a_chart_answers_before_it_is_drawn(visit: Any) -> None:
    """A slow machine draws late; who points at a chart or asks for its table meanwhile gets an answer, not an error."""
    visitor = visit()
    page: Page = visitor.go("/runs/")
    path = str(page.locator("tr[data-href]", has_text="Succeeded").first.get_attribute("data-href"))
    page.add_init_script("window.requestAnimationFrame = () => 0")  # nothing is ever drawn
    page.goto(path)
    chart = page.locator("[data-chart=queue]")
    chart.locator("canvas").dispatch_event("pointermove", {"clientX": 100, "clientY": 100})
    wait_for(lambda: samples_said(page) > 0, "samples")
    chart.locator("[data-table-toggle]").dispatch_event("click")
    expect(chart.locator(".table tbody tr").first).to_be_visible()
    assert "no samples yet" not in reading(page, "queue")
