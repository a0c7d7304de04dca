"""Forms of specs: what is drawn and posted back unchanged is the same spec; problems land at their fields."""

from html.parser import HTMLParser
from typing import Any

import pytest
from django.http import QueryDict
from django.template.loader import render_to_string
from hypothesis import given
from hypothesis import strategies as st

from controlplane.ui.pages.experiments import STARTING
from controlplane.ui.setting import policy_setting
from controlplane.ui.specform.building import Setting, build, node_paths
from controlplane.ui.specform.editing import edit_rows, numbered
from controlplane.ui.specform.nodes import Choice, Group, Items, Leaf
from controlplane.ui.specform.reading import read
from controlplane.ui.specform.shapes import label_of, summary_of
from scheduler_core.policies.registry import manifests
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.pools import Scaling
from scheduler_core.spec.workload import Uniform, WorkloadSpec
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.workload.profiles import profile_names


class FormReader(HTMLParser):
    """What a browser would post: every enabled input, select and textarea, hidden fieldsets included."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: list[tuple[str, str]] = []
        self._select = self._textarea = ""
        self._options: list[tuple[str, bool]] = []
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "input" and values.get("name"):
            self.fields.append((values["name"], values.get("value", "")))
        elif tag == "select":
            self._select, self._options = values["name"], []
        elif tag == "option":
            self._options.append((values["value"], "selected" in values))
        elif tag == "textarea":
            self._textarea, self._text = values["name"], ""

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            chosen = [value for value, selected in self._options if selected] or [self._options[0][0]]
            self.fields.append((self._select, chosen[0]))
        elif tag == "textarea":
            self.fields.append((self._textarea, self._text))


def posted(model: Any, data: dict[str, Any], setting: Setting) -> QueryDict:
    """The post of a form drawn from ``data`` and sent back as it is."""
    html = render_to_string("specform/node.html", {"node": build(model, data, [], setting)})
    reader = FormReader()
    reader.feed(html)
    post = QueryDict(mutable=True)
    for name, value in reader.fields:
        post[name] = value
    return post


PLAIN = Setting()
DRAWN = {"arrivals": {"poisson": {"rate_rps": 4}}, "lengths": {"prompt": {"fixed": 8}, "output": {"fixed": 4}}}
WORKLOADS: dict[str, dict[str, Any]] = {
    "profile": {"profile": "azure-2023-conv", "rate_rps": 2.5, "requests": 10},
    "constant": {**DRAWN, "arrivals": {"constant": {"rate_rps": 1}}, "requests": 3},
    "closed loop": {**DRAWN, "arrivals": {"closed": {"concurrency": 4, "think_s": 0.5}}, "requests": 3},
    "steps": {
        **DRAWN,
        "arrivals": {
            "step": {
                "stages": [{"rate_rps": 1, "for_s": 5}, {"rate_rps": 0, "for_s": 2.5}, {"rate_rps": 3, "for_s": 1}]
            }
        },
        "requests": 3,
    },
    "tables": {
        "arrivals": {"quantiles": {"gaps": {"values": [0, 1.5, 9]}, "rate_rps": 2}},
        "lengths": {
            "prompt": {"quantiles": {"values": [1, 2, 300]}},
            "output": {"lognormal": {"mean": 50, "stdev": 20, "maximum": 99}},
            "scale": 0.5,
        },
        "requests": 4,
    },
    "tiers, tenants, prefix, sessions": {
        **DRAWN,
        "requests": 4,
        "tiers": {
            "chat": {"share": 0.75, "ttft_ms": "200 + 0.5 per uncached token"},
            "batch": {"share": 0.25, "priority": 3},
        },
        "tenants": {"a": {"share": 0.5}, "b": {"share": 0.5}},
        "prefix": {"groups": 2, "tokens": 64, "share": 0.5},
        "sessions": {"turns": {"uniform": {"low": 1, "high": 4}}, "think_s": 2},
        "output_limit": 512,
        "warmup_share": 0.1,
        "seed": 99,
    },
    "no sessions is not empty sessions": {**DRAWN, "requests": 4},
    "empty sessions": {**DRAWN, "requests": 4, "sessions": {}, "prefix": {}},
    "trace": {
        "trace": {
            "dataset": "trc_2222222222222222",
            "format": "csv",
            "time_unit": "ms",
            "rows": "1-60",
            "columns": {"arrival": "t"},
        }
    },
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_drawn_and_sent_back_is_the_same(name: str) -> None:
    spec = parse(WorkloadSpec, WORKLOADS[name])
    again = read(WorkloadSpec, posted(WorkloadSpec, WORKLOADS[name], PLAIN), PLAIN)
    assert parse(WorkloadSpec, again) == spec


@pytest.mark.parametrize("profile", profile_names())
def test_every_bundled_profile_can_be_chosen(profile: str) -> None:
    data = {"profile": profile, "rate_rps": 1, "requests": 5}
    assert read(WorkloadSpec, posted(WorkloadSpec, data, PLAIN), PLAIN)["profile"] == profile


@given(
    budget=st.integers(1, 10**6),
    size=st.integers(1, 65_536),
    watermark=st.floats(0, 1).map(lambda share: round(share, 6)),
    chunked=st.booleans(),
    by=st.sampled_from(["arrival", "priority"]),
)
def test_a_policy_drawn_and_sent_back_is_the_same(
    budget: int, size: int, watermark: float, chunked: bool, by: str
) -> None:
    data = {
        "policy": "vllm_v1",
        "order": {"by": by},
        "cache": {"watermark": watermark},
        "batch": {"token_budget": budget, "size": size, "chunked_prefill": chunked},
    }
    setting = policy_setting()
    again = parse(PolicySpec, read(PolicySpec, posted(PolicySpec, data, setting), setting))
    assert again.batch == parse(PolicySpec, data).batch
    assert again.order.by == by
    assert again.cache.watermark == pytest.approx(watermark, abs=1e-6)


EVERYTHING: dict[str, Any] = {
    "layout": "split",
    "prefill": "p_any+p_gold",
    "scale_prefill": {"least": 2, "by": "wait", "up_at": 500, "down_at": 10},
    "scale_decode": {},
    "rebalance": {"decode_kv_share": 0.5},
    "transfer": {"wait_ms": 300},
    "migrate": {"above": 0.5},
    "borrow_tokens": 4000,
    "tiers": {"gold": {"groups": "p_gold+d_gold", "overflow": "p_any+d_any", "overflow_at": 3}},
    "hold": {"p_any": 1},
}


def test_pools_with_every_means_drawn_and_sent_back_are_the_same() -> None:
    """Also groups that are named in one word, which a form sends as a list of one."""
    data, setting = {"policy": "vllm_v1", "pools": EVERYTHING}, policy_setting()
    again = parse(PolicySpec, read(PolicySpec, posted(PolicySpec, data, setting), setting))
    assert again == parse(PolicySpec, data)
    assert again.pools.prefill == ("p_any", "p_gold")


def test_every_setting_of_pools_says_what_it_does_also_where_it_is_off() -> None:
    tree = build(PolicySpec, {"policy": "vllm_v1"}, [], policy_setting())
    for node in node_paths(tree):
        if not node.path.startswith("pools."):
            continue
        if isinstance(node, Choice):
            assert all(variant.help for variant in node.variants), node.path
        elif isinstance(node, Leaf | Items):
            assert node.help, node.path
    assert label_of("by", Scaling) == ("Pressure", "")


@pytest.mark.parametrize("preset", manifests())
def test_a_policy_form_offers_exactly_what_its_preset_takes(preset: str) -> None:
    tree = build(PolicySpec, {"policy": preset}, [], policy_setting())
    offered = {node.path for node in node_paths(tree) if isinstance(node, Leaf | Choice | Items)} - {"policy"}
    assert offered == set(manifests()[preset].settable)


def test_defaults_of_the_preset_are_shown_not_posted() -> None:
    tree = build(PolicySpec, {"policy": "static"}, [], policy_setting())
    leaf = next(node for node in node_paths(tree) if node.path == "batch.token_budget")
    assert isinstance(leaf, Leaf)
    assert (leaf.default, leaf.value) == ("8192", "")
    setting = policy_setting()
    assert read(PolicySpec, posted(PolicySpec, {"policy": "static"}, setting), setting) == {"policy": "static"}


def test_an_experiment_drawn_and_sent_back_is_the_same() -> None:
    data = {
        **STARTING,
        "name": "x",
        "goal": {"primary": "e2e_p95_ms", "better_by": 0.2, "guard": {"tpot_p95_ms": 0.05}},
    }
    setting = policy_setting()
    again = parse(ExperimentSpec, read(ExperimentSpec, posted(ExperimentSpec, data, setting), setting))
    assert again == parse(ExperimentSpec, data)


def test_an_experiment_without_guards_stays_without() -> None:
    data = {**STARTING, "name": "x", "goal": {"guard": {}}}
    again = read(ExperimentSpec, posted(ExperimentSpec, data, policy_setting()), policy_setting())
    assert parse(ExperimentSpec, again).goal.guard == {}


def test_saved_versions_are_chosen_by_reference() -> None:
    setting = policy_setting()
    setting.saved = {WorkloadSpec: (("wkv_1", "evening v1"),), PolicySpec: (("plv_1", "tuned v1"),)}
    data = {
        **STARTING,
        "name": "x",
        "workload": {"use": "wkv_1"},
        "arms": {"a": {"use": "plv_1"}, "b": {"policy": "static"}},
    }
    again = read(ExperimentSpec, posted(ExperimentSpec, data, setting), setting)
    assert again["workload"] == {"use": "wkv_1"}
    assert again["arms"] == {"a": {"use": "plv_1"}, "b": {"policy": "static"}}


def test_problems_land_at_their_fields() -> None:
    data = {**WORKLOADS["tiers, tenants, prefix, sessions"], "requests": 0}
    data["tiers"] = {"chat": {"share": 1, "ttft_ms": "fast"}}
    with pytest.raises(InputError) as caught:
        parse(WorkloadSpec, data)
    tree = build(WorkloadSpec, data, caught.value.problems, PLAIN)
    found = {node.path: node.errors for node in node_paths(tree) if node.errors}
    assert set(found) == {"requests", "tiers.chat.ttft_ms"}


def test_a_problem_below_a_folded_or_further_part_opens_it() -> None:
    data = {**STARTING, "name": "x"}
    tree = build(ExperimentSpec, data, [Problem("arms.candidate.cache.watermark", "too much")], policy_setting())
    html = render_to_string("specform/node.html", {"node": tree})
    assert html.index("too much") > 0
    before = html[: html.index("too much")]
    assert before.count("<details") - before.count("</details>") == 0


def test_a_problem_without_a_field_is_said_at_the_nearest_part() -> None:
    tree = build(ExperimentSpec, STARTING, [Problem("arms.candidate.nonsense", "unknown key")], policy_setting())
    assert [node.path for node in node_paths(tree) if node.errors] == ["arms.candidate"]


def test_two_rows_of_one_name_are_refused() -> None:
    post = posted(WorkloadSpec, WORKLOADS["tiers, tenants, prefix, sessions"], PLAIN)
    post["tenants.1.__key"] = "a"
    with pytest.raises(InputError, match="used twice"):
        read(WorkloadSpec, post, PLAIN)


def test_a_number_that_is_too_long_to_be_one_is_said_at_its_field() -> None:
    data = read(WorkloadSpec, QueryDict(f"requests={'9' * 5000}"), Setting())
    with pytest.raises(InputError, match="requests: Unable to parse input string as an integer"):
        parse(WorkloadSpec, data)


def test_rows_are_added_and_removed() -> None:
    post = posted(WorkloadSpec, WORKLOADS["tiers, tenants, prefix, sessions"], PLAIN)
    suggest = lambda path, used: numbered("tenant", used)  # noqa: E731
    assert list(read(WorkloadSpec, edit_rows(post, "add:tenants", suggest), PLAIN)["tenants"]) == ["a", "b", "tenant-1"]
    assert list(read(WorkloadSpec, edit_rows(post, "remove:tenants.0", suggest), PLAIN)["tenants"]) == ["b"]


def test_a_list_of_names_is_read_with_its_spaces() -> None:
    """Names of groups may have spaces in them; commas and lines part them."""
    post = QueryDict("policy=vllm_v1&pools.layout=split&pools.prefill=big ones, small%0Alast")
    assert read(PolicySpec, post, policy_setting())["pools"] == {
        "layout": "split",
        "prefill": ["big ones", "small", "last"],
    }


def test_units_of_links_are_written_as_people_write_them() -> None:
    assert label_of("link_gb_per_s") == ("Link", "GB/s")
    assert label_of("link_latency_us") == ("Link latency", "µs")
    assert label_of("throttle_requests_per_s") == ("Throttle requests", "per second")
    assert label_of("age_ms_per_token") == ("Age", "ms per token")


def test_a_label_that_names_its_unit_does_not_name_it_twice() -> None:
    assert label_of("host_blocks") == ("Host blocks", "")
    assert label_of("tokens") == ("Tokens", "")
    assert label_of("block_size") == ("Block size", "tokens")
    assert label_of("think_s") == ("Think time", "s")


def test_help_has_no_marks_of_code_and_what_is_folded_keeps_its_capitals() -> None:
    assert summary_of(Uniform) == "Whole numbers from low to high, both included, equally likely."
    group = Group("", "", children=[Leaf("", "", "TTFT"), Leaf("", "", "Reject KV share")])
    assert group.labels == "TTFT, reject KV share"
