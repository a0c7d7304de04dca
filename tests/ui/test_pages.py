"""Every page: for its owner, a teammate and a stranger, with wrong verbs, ids that mean nothing, and hostile names."""

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from controlplane.accounts.models import User
from controlplane.runs.models import Run
from controlplane.ui import readings
from controlplane.ui.urls import urlpatterns
from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.verdict.titles import metric_title
from tests.evidence.played import play, summarise
from tests.ui.conftest import World, signed_in
from tests.ui.samples import HOSTILE, SUMMARY

ARGUMENTS: dict[str, Callable[[World], list[Any]]] = {
    "experiment": lambda w: [w.experiment.pk],
    "run": lambda w: [w.run.pk],
    "run-artifact": lambda w: [w.run.pk, w.artifact.pk],
    "run-segment": lambda w: [w.run.pk, w.segment.pk],
    "workload": lambda w: [w.workload.workload_id],
    "workload-version": lambda w: [w.workload.workload_id, 1],
    "trace": lambda w: [w.dataset.pk],
    "policy": lambda w: [w.policy.policy_id],
    "policy-version": lambda w: [w.policy.policy_id, 2],
    "profile": lambda w: [w.profile.pk],
    "study": lambda w: [w.study.pk],
    "study-new": lambda w: ["guided"],
    "endpoint": lambda w: [w.endpoint.pk],
}
SHOWN = [
    "home", "experiments", "experiment-new", "experiment", "experiment-spec", "runs", "run", "run-requests",
    "run-artifact", "run-segment", "workloads", "workload-new", "workload-version", "traces", "trace-new", "trace",
    "policies", "policy-new", "policy-version", "fleet", "profile", "measured", "studies", "study", "study-new",
    "endpoints", "endpoint",
]  # fmt: skip
OWNERS_ONLY = ["workload-edit", "policy-edit"]
LEADING_ON = ["workload", "policy"]
ACTING = [
    "run-first", "experiment-cancel", "experiment-archive", "experiment-notes", "run-cancel", "run-retry", "run-close",
    "run-fork", "study-cancel", "study-resume", "workload-archive", "trace-delete", "policy-archive", "calibrate",
    "probe", "worker-drain", "endpoint-check", "endpoint-try", "endpoint-change", "endpoint-remove",
]  # fmt: skip
ON_SOMETHING = [name for name in ACTING if name not in ("run-first", "calibrate", "probe", "run-fork")]
HTML = [name for name in SHOWN if name not in ("experiment-spec", "run-artifact", "run-segment")]


def path_of(name: str, world: World) -> str:
    subject = name.rpartition("-")[0] if name not in ARGUMENTS else name
    arguments = ARGUMENTS[subject](world) if subject in ARGUMENTS else []
    if name in ("experiment-new", "workload-new", "trace-new", "policy-new", "worker-drain", "run-first"):
        arguments = []
    return reverse(name, args=arguments)


def test_every_url_is_in_one_of_the_lists_below() -> None:
    named = {pattern.name for pattern in urlpatterns if pattern.name}
    assert named == {*SHOWN, *OWNERS_ONLY, *LEADING_ON, *ACTING}


def statuses(client: Client, names: list[str], world: World, verb: str = "get", **data: Any) -> dict[str, int]:
    """Status of each page."""
    return {name: getattr(client, verb)(path_of(name, world), data).status_code for name in names}


def bodies(client: Client, world: World) -> Iterator[tuple[str, str]]:
    """Name and text of each page."""
    for name in HTML:
        yield name, client.get(path_of(name, world)).content.decode()


def test_its_owner_sees_everything(browser: Client, world: World) -> None:
    names = [*SHOWN, *OWNERS_ONLY]
    assert statuses(browser, names, world) == dict.fromkeys(names, 200)


def test_a_teammate_sees_everything(teammate: User, world: World) -> None:
    assert statuses(signed_in(teammate), SHOWN, world) == dict.fromkeys(SHOWN, 200)


def test_a_teammate_may_not_edit(teammate: User, world: World) -> None:
    client = signed_in(teammate)
    assert statuses(client, OWNERS_ONLY, world) == dict.fromkeys(OWNERS_ONLY, 403)
    assert statuses(client, OWNERS_ONLY, world, "post", do="save", policy="static") == dict.fromkeys(OWNERS_ONLY, 403)


@pytest.mark.parametrize("verb", ["get", "post"])
def test_a_stranger_is_sent_to_sign_in(verb: str, world: World) -> None:
    for name in [*SHOWN, *OWNERS_ONLY, *LEADING_ON, *ACTING]:
        answer = getattr(Client(), verb)(path_of(name, world))
        refused = answer.status_code == 405 or answer.get("Location", "").startswith("/login/?next=")
        assert refused and b"budgets" not in answer.content, name


def test_it_leads_to_the_newest_version(browser: Client, world: World) -> None:
    assert statuses(browser, LEADING_ON, world) == dict.fromkeys(LEADING_ON, 302)
    assert browser.get(path_of("policy", world))["Location"].endswith("/2/")


@pytest.mark.parametrize("verb", ["put", "patch", "delete"])
def test_other_verbs_are_refused(verb: str, browser: Client, world: World) -> None:
    names = [*SHOWN, *OWNERS_ONLY, *LEADING_ON, *ACTING]
    assert statuses(browser, names, world, verb) == dict.fromkeys(names, 405)


def test_looking_never_acts(browser: Client, world: World) -> None:
    assert statuses(browser, ACTING, world) == dict.fromkeys(ACTING, 405)


def test_a_teammate_changes_nothing(teammate: User, world: World) -> None:
    before = [(run.pk, run.state) for run in Run.objects.order_by("pk")]
    data = {"worker": world.worker.pk, "notes": "mine now"}
    assert statuses(signed_in(teammate), ON_SOMETHING, world, "post", **data) == dict.fromkeys(ON_SOMETHING, 403)
    assert [(run.pk, run.state) for run in Run.objects.order_by("pk")] == before
    world.experiment.refresh_from_db()
    assert world.experiment.notes == HOSTILE and world.experiment.archived_at is None


def test_a_form_from_elsewhere_is_refused(owner: User, world: World) -> None:
    """Signed in, but without the token that only our own pages carry."""
    client = signed_in(owner, enforce_csrf_checks=True)
    names = [*ACTING, "experiment-new", "workload-new", "policy-new", "trace-new", *OWNERS_ONLY]
    assert statuses(client, names, world, "post", do="save") == dict.fromkeys(names, 403)


def test_made_up_ids_are_not_found(browser: Client, world: World) -> None:
    made_up = ["run_2222222222222222", "x", "..%2f..%2fetc%2fpasswd", "%00", "'--", "a" * 300]
    for name in [name for name in [*SHOWN, *OWNERS_ONLY, *LEADING_ON] if name in ARGUMENTS]:
        real = str(ARGUMENTS[name](world)[0])
        for item in made_up:
            assert browser.get(path_of(name, world).replace(real, item)).status_code == 404, (name, item)


def test_hostile_names_stay_text(browser: Client, world: World) -> None:
    shown = 0
    for name, body in bodies(browser, world):
        assert "<img src=x" not in body, name
        assert "onerror=alert(1)&gt;49" not in body, name
        shown += body.count("onerror=alert(1)")
    assert shown > 20  # they were there


def test_nothing_is_inline_and_the_policy_forbids_it(browser: Client, world: World) -> None:
    policy = browser.get("/")["Content-Security-Policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy
    for name, body in bodies(browser, world):
        for tag in re.findall(r"<script[^>]*>", body):
            assert " src=" in tag or 'type="application/json"' in tag, name
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=\"", body), name


def test_every_page_is_whole_and_accessible(browser: Client, world: World) -> None:
    for name, body in bodies(browser, world):
        assert body.count("<h1") == 1 and body.count('<main id="main"') == 1, name
        assert 'aria-label="Main"' in body and 'class="skip"' in body, name
        ids = re.findall(r'\sid="([^"]+)"', body)
        assert len(ids) == len(set(ids)), (name, [item for item in ids if ids.count(item) > 1])
        labelled = set(re.findall(r'<label[^>]* for="([^"]+)"', body))
        for control in re.findall(r"<(?:input|select|textarea)[^>]*>", body):
            found = re.search(r'\sid="([^"]+)"', control)
            named = 'type="hidden"' in control or "aria-label" in control or (found and found[1] in labelled)
            assert named, (name, control)


def test_artifacts_are_downloads_that_no_browser_runs(browser: Client, world: World) -> None:
    answer: Any = browser.get(path_of("run-artifact", world))
    assert answer["Content-Disposition"].startswith("attachment;")
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Content-Security-Policy"].startswith("sandbox")
    assert b"".join(answer.streaming_content) == b"{}"


def test_pages_offer_the_exports_that_can_be_had(browser: Client, world: World) -> None:
    run = browser.get(path_of("run", world)).content.decode()
    for name, there in (("report.html", True), ("timeline.json", True), ("requests.csv", False)):
        assert (reverse("api:run-export", args=[world.run.pk, name]) in run) is there, name
    address = reverse("api:experiment-export", args=[world.experiment.pk, "verdict.xml"])
    assert address in browser.get(path_of("experiment", world)).content.decode()
    assert browser.get(address)["X-Content-Type-Options"] == "nosniff"
    type(world.experiment).objects.update(verdict=None)
    assert address not in browser.get(path_of("experiment", world)).content.decode()


def test_evidence_of_another_run_is_not_found(browser: Client, world: World) -> None:
    other = Run.objects.exclude(pk=world.run.pk)[0]
    assert browser.get(reverse("run-artifact", args=[other.pk, world.artifact.pk])).status_code == 404
    assert browser.get(reverse("run-segment", args=[other.pk, world.segment.pk])).status_code == 404


def test_absences_read_as_words_never_as_zero(browser: Client, world: World) -> None:
    body = browser.get(path_of("run", world)).content.decode()
    assert "too few samples" in body and "not measured" in body
    assert re.search(r"<dt>TTFT p95</dt><dd>\s*123<small> ms</small>", body)
    assert re.search(r"<dt>Completion</dt><dd>\s*100<small> %</small>", body)


def test_a_run_shows_what_the_devices_of_an_instance_did(browser: Client, world: World) -> None:
    """One row a figure that the run has, with its unit; of one-device instances, which have none, no table at all."""
    path, heading = path_of("run", world), "Devices of an instance</th>"
    assert heading not in browser.get(path).content.decode()
    figures: dict[str, dict[str, Any]] = {
        "collective_ms": {"value": 40.0, "unit": "ms"},
        "exposed_collective_ms": {"value": 12.5, "unit": "ms"},
        "bubble_ms": {"value": 0.0, "unit": "ms"},
        "expert_load_imbalance": {"value": None, "unit": "x", "absence": "not_applicable"},
    }
    described = {name: {"n": None, "absence": None, "note": "", **figure} for name, figure in figures.items()}
    summary = {**SUMMARY, "metrics": {**SUMMARY["metrics"], **described}}
    Run.objects.filter(pk=world.run.pk).update(summary=summary)
    body = browser.get(path).content.decode()
    table = body[body.index(heading) :].split("</table>")[0]
    rows = re.findall(r'<th scope="row">(.*?)</th><td class="num">\s*(.*?)\s*</td>', table, re.DOTALL)
    assert [(title, " ".join(re.sub(r"<[^>]*>", " ", value).split())) for title, value in rows] == [
        (metric_title("collective_ms"), "40 ms"),
        (metric_title("exposed_collective_ms"), "12.5 ms"),
        (metric_title("bubble_ms"), "0 ms"),
    ]


def test_a_run_says_what_samples_of_one_prompt_shared(browser: Client, world: World) -> None:
    assert "shared with another sample" not in browser.get(path_of("run", world)).content.decode()
    shared = {"shared_rate": {"value": 0.832, "unit": "share"}, "copied_on_write_blocks": {"value": 1200.0}}
    summary = {**SUMMARY, "metrics": {**SUMMARY["metrics"], **shared}}
    Run.objects.filter(pk=world.run.pk).update(summary=summary)
    body = browser.get(path_of("run", world)).content.decode()
    assert "83.2 % of the prompt tokens shared with another sample; 1,200 blocks copied on write" in body


@pytest.mark.parametrize("status", ["404", "403"])
def test_error_pages_say_what_to_do(status: str, browser: Client, teammate: User, world: World) -> None:
    client = browser if status == "404" else signed_in(teammate)
    path = "/nowhere/" if status == "404" else path_of("policy-edit", world)
    answer = client.get(path)
    assert str(answer.status_code) == status
    assert b"To the overview" in answer.content


@pytest.mark.parametrize(
    ("cookie", "attribute"), [("dark", 'data-theme="dark"'), ("light", 'data-theme="light"'), ('"><x', "")]
)
def test_the_colour_switch_is_drawn_by_the_server(cookie: str, attribute: str, browser: Client) -> None:
    browser.cookies["theme"] = cookie
    head = browser.get("/").content.decode().split("<head>")[0]
    assert (attribute in head) if attribute else ("data-theme" not in head)


def test_figures_by_another_tools_formulas_beside_headways(world: World, owner: User, tmp_path: Path) -> None:
    """The switch on the run's and the experiment's page shows both values, the formula and why they differ."""
    summary = summarise(play({"policy": "vllm_v1"}, {"requests": 30}), tmp_path, arm=world.run.job["arm"])
    Run.objects.filter(pk=world.run.pk).update(summary=summary.canonical())
    client = signed_in(owner)
    told = client.get(path_of("run", world)).content.decode()
    assert "30 = 30 sent + 0 not sent" in told and "30 = 30 finished" in told
    for name in ("run", "experiment"):
        address = path_of(name, world)
        plain = client.get(address).content.decode()
        assert "By another tool" in plain and "Why it differs" not in plain
        shown = client.get(f"{address}?formulas=guidellm").content.decode()
        assert "(last token - real send) / tokens, weighted by tokens" in shown
        assert "the wait for the first token is inside" in shown
        assert readings.number(summary.by_tool["guidellm"]["tpot_mean_ms"].value) in shown
        assert html.escape(METRICS["tpot_mean_ms"].formula) in shown
        assert "Why it differs" not in client.get(f"{address}?formulas={HOSTILE}").content.decode()
