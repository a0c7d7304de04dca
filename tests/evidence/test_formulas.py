"""Known streams by every tool's formula: the spreads that the same name hides."""

import pytest

from scheduler_core.evidence.formulas import FORMULAS, Stream, recompute


def steady(first: float, tokens: int, step: float) -> Stream:
    return Stream(0, 0, tuple(first + step * place for place in range(tokens)))


def test_tpot_with_and_without_the_first_token() -> None:
    """TTFT 2 s, then 50 gaps of 20 ms: (last - first) / 50 = 20; (2000 + 50 x 20) / 51 = 58.8 with the first inside."""
    stream = [steady(2000, 51, 20)]
    assert recompute(stream, "headway")["tpot_ms"]["mean"] == pytest.approx(20)
    assert recompute(stream, "guidellm")["tpot_ms"]["mean"] == pytest.approx(3000 / 51)


def test_chunks_of_four_tokens() -> None:
    """Chunks of four tokens 80 ms apart: 80 per chunk; 20 even; stamps 0, 0, 0, 80 give a median of 0."""
    times = tuple(float(80 * chunk) for chunk in range(1, 11) for _ in range(4))
    stream = [Stream(0, 0, times)]
    assert recompute(stream, "vllm-bench")["itl_ms"]["p50"] == pytest.approx(80)
    assert recompute(stream, "headway")["itl_ms"]["p50"] == pytest.approx(20)
    assert recompute(stream, "inference-perf")["itl_ms"]["p50"] == 0
    assert recompute(stream, "aiperf")["itl_ms"]["mean"] == pytest.approx(720 / 36)


def test_chunk_counts_are_no_token_counts() -> None:
    """Chunks at 100 (1 token), 130 (3), 160 (3): seven tokens, TTFT 100, TPOT 60 / 6 = 10, chunk gaps 30 and 30."""
    stream = [Stream(0, 0, (100, 130, 130, 130, 160, 160, 160))]
    ours = recompute(stream, "headway")
    assert (ours["ttft_ms"]["mean"], ours["tpot_ms"]["mean"]) == (100, 10)
    assert ours["itl_ms"]["mean"] == pytest.approx(10)
    assert recompute(stream, "sglang-bench")["itl_ms"]["mean"] == 30
    assert recompute(stream, "llmperf")["itl_ms"]["mean"] == pytest.approx(160 / 3)


def test_stalls_hide_in_pooled_gaps_and_means() -> None:
    """5 of 100 streams of 200 tokens stall once for 2 s: pooled p99.9 and p99 of means stay near 20 and 30 ms."""
    quiet = [steady(100, 200, 20) for _ in range(95)]
    times = [100 + 20.0 * place + (2000 if place >= 100 else 0) for place in range(200)]
    streams = quiet + [Stream(0, 0, tuple(times))] * 5
    assert recompute(streams, "vllm-bench", (0.999,))["itl_ms"]["p99.9"] == pytest.approx(20)
    assert recompute(streams, "headway", (0.99,))["tpot_ms"]["p99"] == pytest.approx(20 + 2000 / 199)


def test_one_token_and_no_token() -> None:
    """One-token answers have no TPOT anywhere; a failed stream enters nothing; GuideLLM counts a missing TTFT as 0."""
    streams = [Stream(0, 0, (50,)), Stream(0, 0, (10, 20), failed=True), Stream(0, 0, ())]
    for tool, formulas in FORMULAS.items():
        table = recompute(streams, tool)
        assert "tpot_ms" not in formulas or tool == "guidellm" or table["tpot_ms"]["mean"] is None
    assert recompute(streams, "headway")["ttft_ms"]["mean"] == 50
    assert recompute(streams, "guidellm")["ttft_ms"]["mean"] == 25
    assert recompute(streams, "inference-perf")["ttft_ms"]["mean"] is None


def test_late_client_shows_in_ours_alone() -> None:
    """Sent 300 ms late: ours counts from the intended time, the others from the real send."""
    stream = [Stream(0, 300, (400, 420))]
    assert recompute(stream, "headway")["ttft_ms"]["mean"] == 400
    assert recompute(stream, "vllm-bench")["ttft_ms"]["mean"] == 100


def test_every_formula_is_told_in_words() -> None:
    assert all(formula.text for formulas in FORMULAS.values() for formula in formulas.values())
