"""Servers told apart, settings read back, policies as flags and flags as policies."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runner.server.adapters import sglang, vllm
from gpu_runner.server.adapters.effect import check_effect
from gpu_runner.server.adapters.flags import KNOBS, from_flags, settings_of, to_flags
from gpu_runner.server.adapters.known import Abilities, Found
from gpu_runner.server.mock.behaviour import Behaviour, Scripted
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.types.errors import InputError
from tests.server.playing import evenly, play

BATCHES = st.fixed_dictionaries(
    {},
    optional={
        "size": st.integers(1, 512), "token_budget": st.integers(16, 65_536), "chunked_prefill": st.just(True),
        "queue_limit": st.integers(0, 1000),
    },
)  # fmt: skip
CACHES = st.fixed_dictionaries(
    {}, optional={"block_size": st.integers(1, 256), "prefix": st.sampled_from(["hash", "none"])}
)
ORDERS = st.fixed_dictionaries({}, optional={"by": st.sampled_from(["arrival", "priority"])})


@given(batch=BATCHES, cache=CACHES, order=ORDERS, server=st.sampled_from(["vllm", "sglang"]))
def test_what_a_server_has_a_knob_for_survives_the_way_to_flags_and_back(
    batch: Any, cache: Any, order: Any, server: str
) -> None:
    preset = KNOBS[server].presets[0]
    policy = PolicySpec.model_validate({"policy": preset, "batch": batch, "cache": cache, "order": order})
    flags = to_flags(policy, server)
    assert not flags.cannot
    back, rest = from_flags(["--model", "x", *flags.arguments], server)
    assert rest == ("--model", "x")
    said = settings_of(policy)
    # A setting that is the server's only way needs no flag, and so is not said by any.
    silent = {("batch.queue_limit", 0), ("batch.chunked_prefill", True), ("cache.prefix", "hash")}
    assert settings_of(back).items() <= said.items()
    assert {item for item in said.items() if item not in silent} <= set(settings_of(back).items())


def test_flags_as_people_write_them() -> None:
    policy, rest = from_flags(
        ["--max-num-batched-tokens=2048", "--max-num-seqs", "64", "--scheduling-policy", "priority", "--port=8000"],
        "vllm",
    )
    assert policy.policy == "vllm_v1"
    assert (policy.batch.token_budget, policy.batch.size, policy.order.by) == (2048, 64, "priority")
    assert rest == ("--port", "8000")
    with pytest.raises(InputError, match="--max-num-seqs: needs a whole number behind it"):
        from_flags(["--max-num-seqs"], "vllm")
    with pytest.raises(InputError, match="flags of 'tgi' are not known"):
        from_flags([], "tgi")


@pytest.mark.parametrize(
    ("policy", "server", "cannot"),
    [
        ({"policy": "vllm_v1", "order": {"by": "shortest"}}, "vllm", {"order.by"}),
        ({"policy": "vllm_v1", "cache": {"watermark": 0.1}}, "vllm", {"cache.watermark"}),
        ({"policy": "vllm_v1", "cache": {"admit": "limit"}}, "vllm", {"cache.admit"}),
        ({"policy": "vllm_v1", "batch": {"max_wait_ms": 5}}, "vllm", {"batch.max_wait_ms"}),
        ({"policy": "static"}, "vllm", {"policy"}),
        ({"policy": "vllm_v1"}, "sglang", {"policy"}),
        ({"policy": "vllm_v1", "cache": {"eviction": "fifo"}}, "vllm", {"cache.eviction"}),
        ({"policy": "sglang", "batch": {"long_prefill_cap": 64}}, "sglang", {"batch.long_prefill_cap"}),
        ({"policy": "vllm_v1", "batch": {"size": 4}}, "openai", {"batch.size"}),
        ({"policy": "vllm_v1", "execution": {"draft_tokens": 4}}, "vllm", {"execution.draft_tokens"}),
        ({"policy": "sglang", "execution": {"draft_tokens": 4}}, "sglang", {"execution.draft_tokens"}),
        ({"policy": "vllm_v1", "execution": {"draft_tokens": 0}}, "vllm", set()),
    ],
)
def test_what_a_server_cannot_express_is_named(policy: Any, server: str, cannot: set[str]) -> None:
    assert set(to_flags(PolicySpec.model_validate(policy), server).cannot) == cannot


def test_settings_of_vllm_s_own_configuration() -> None:
    config = {
        "scheduler_config": {
            "max_num_batched_tokens": 2048, "max_num_seqs": 64, "policy": "fcfs", "enable_chunked_prefill": True,
            "long_prefill_token_threshold": 0, "max_num_queued_reqs": None,
        },
        "cache_config": {"block_size": 16, "num_gpu_blocks": 2427, "enable_prefix_caching": False},
    }  # fmt: skip
    assert vllm.settings_of(config) == {
        "batch.token_budget": 2048, "batch.size": 64, "batch.chunked_prefill": True, "batch.long_prefill_cap": 0,
        "batch.queue_limit": 0, "order.by": "arrival", "cache.block_size": 16, "cache.blocks": 2427,
        "cache.prefix": "none",
    }  # fmt: skip


def test_settings_of_sglang_s_arguments() -> None:
    found = sglang.settings_of(
        {"chunked_prefill_size": -1, "max_running_requests": 32, "page_size": 16, "disable_radix_cache": False,
         "schedule_policy": "lpm", "max_total_num_tokens": 1600}
    )  # fmt: skip
    assert found == {
        "batch.chunked_prefill": False, "batch.size": 32, "cache.block_size": 16, "cache.prefix": "hash",
        "cache.blocks": 100, "order.by": "lpm",
    }  # fmt: skip


def test_a_setting_that_did_not_take_effect_is_refused_and_what_was_not_shown_is_said() -> None:
    found = Found("vllm", "0.33.0", "m", Abilities(), {"batch.token_budget": 512})
    policy = PolicySpec.model_validate({"policy": "vllm_v1", "batch": {"token_budget": 2048}})
    with pytest.raises(InputError, match=r"the policy says 2048, the server says 512; it did not take effect"):
        check_effect(policy, found)
    right = PolicySpec.model_validate({"policy": "vllm_v1", "batch": {"token_budget": 512, "size": 8}})
    assert check_effect(right, found) == [
        "read back from the server: batch.token_budget 512",
        "not confirmed, the server does not show it: batch.size",
    ]


@pytest.mark.parametrize(("dialect", "version"), [("vllm", "0.33.0"), ("sglang", "0.5.23"), ("openai", "")])
def test_each_server_is_told_and_its_version_kept(dialect: Any, version: str, tmp_path: Path) -> None:
    played = play(Behaviour(dialect=dialect, scripted=Scripted(ttft_ms=2, gap_ms=1)), evenly(2, gap_ms=5), tmp_path)
    assert played.summary.deployment["server"] == dialect
    assert played.summary.deployment["version"] == version
    notes = " ".join(played.summary.fingerprint["notes"])
    assert ("lengths are not forced" in notes) == (dialect == "openai")


def test_a_server_that_is_another_is_refused(tmp_path: Path) -> None:
    played = play(Behaviour(dialect="openai"), evenly(1, gap_ms=1), tmp_path, server="vllm")
    assert played.result.outcome == "failed" and "does not answer as vllm does" in played.result.reason


def test_a_model_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    played = play(Behaviour(model="m1"), evenly(1, gap_ms=1), tmp_path, model="m2")
    assert "has no model 'm2'; it has m1" in played.result.reason
