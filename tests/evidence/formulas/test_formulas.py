"""Known streams by every tool's formula: the spreads that the same name hides. Figures are worked out by hand."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from scheduler_core.evidence.client.finalise import finalise_client
from scheduler_core.evidence.formulas.side_by_side import FormulaTable, by_arm, side_by_side
from scheduler_core.evidence.formulas.tools import FORMULAS
from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.evidence.schema import Absence, RunSummary
from scheduler_core.spec.workload import Tier
from scheduler_core.types.client_records import Sent, Streamed
from scheduler_core.types.errors import InputError
from scheduler_core.types.records import Arrived, Finished, Record, RunFinished, RunStarted
from tests.evidence.played import play, summarise
from tests.evidence.scenes import ns

Answer = tuple[float, list[tuple[float, int]], float]
"""How late it was sent, its chunks as (time, tokens), and when its stream ended; ms from its arrival at 0."""


def client_run(answers: Sequence[Answer]) -> list[Record]:
    """Records of a client's run of these answers, each due at 0; one without a chunk has failed."""
    records: list[Record] = [
        RunStarted(run="r", attempt=1, plan_digest="p", policy_digest="d", policy={}, target={"server": {}},
                   level="external_server", source="client", offered=len(answers), kv_blocks=0, block_size=1,
                   token_budget=0)
    ]  # fmt: skip
    for number, (late, chunks, end) in enumerate(answers):
        records += [Arrived(0, 0, number, 10, 1000, "default", "default"), Sent(ns(late), number, 1, 0)]
        records += [Streamed(ns(at), [(number, ns(at), tokens)]) for at, tokens in chunks]
        tokens = sum(count for _, count in chunks)
        outcome = "finished" if chunks else "failed"
        records.append(Finished(ns(end), number, outcome, "stream", "" if chunks else "no token", tokens))
    return [*records, RunFinished(ns(max(end for *_, end in answers)), True, "done", 0, 0)]


def run_of(records: list[Record], folder: Path, **tier: object) -> RunSummary:
    """The summary of a client's run."""
    return finalise_client(records, folder=folder, arm="a", repeat=0, tiers={"default": Tier(**tier)})


def steady(first: float, tokens: int, step: float, stall: float = 0) -> Answer:
    """``tokens`` one by one; ``stall`` more before the middle one."""
    times = [first + step * place + stall * (place >= tokens // 2) for place in range(tokens)]
    return 0, [(time, 1) for time in times], times[-1]


def figure(run: RunSummary, tool: str, name: str) -> float | None:
    return run.by_tool[tool][name].value


def test_tpot_with_and_without_the_first_token(tmp_path: Path) -> None:
    """TTFT 2 s, then 50 gaps of 20 ms: (last - first) / 50 = 20; (2000 + 50 x 20) / 51 = 58.8 with the first inside."""
    run = run_of(client_run([steady(2000, 51, 20)]), tmp_path)
    assert run.metrics["tpot_mean_ms"].value == figure(run, "vllm-bench", "tpot_mean_ms") == 20
    assert figure(run, "guidellm", "tpot_mean_ms") == pytest.approx(3000 / 51)


def test_chunks_of_four_tokens(tmp_path: Path) -> None:
    """Ten chunks of four tokens 80 ms apart, 40 tokens.

    By chunk each of the 9 gaps is 80. AIPerf leaves out the first chunk's four: 720 / 36 = 20. Of inference-perf's 39
    gaps 30 are 0. Headway spreads each wait over four tokens: 20, and the three of the first chunk came at once.
    """
    run = run_of(client_run([(0, [(80.0 * chunk, 4) for chunk in range(1, 11)], 800)]), tmp_path)
    assert figure(run, "vllm-bench", "itl_p50_ms") == figure(run, "aiperf", "chunk_gap_p50_ms") == 80
    assert run.metrics["itl_p50_ms"].value == 20
    assert figure(run, "aiperf", "itl_mean_ms") == 20
    assert figure(run, "inference-perf", "itl_p50_ms") == 0
    assert figure(run, "inference-perf", "itl_mean_ms") == pytest.approx(720 / 39)
    assert run.by_tool["inference-perf"]["itl_p99_ms"].n == 39


def test_weights_and_ranks_of_guidellm(tmp_path: Path) -> None:
    """A: 2 tokens at 100 and 110. B: 4 tokens at 200, 230, 260, 290.

    TPOT weighted by tokens: A 110 / 2 = 55 (2), B 290 / 4 = 72.5 (4): mean (110 + 290) / 6, and the median is B, whose
    weight reaches half of 6. ITL weighted by gaps: A 10 (1), B 30 (3): mean 25. Without interpolation the median of the
    two TTFT is 100, with it 150.
    """
    run = run_of(
        client_run([(0, [(100, 1), (110, 1)], 110), (0, [(200 + 30 * p, 1) for p in range(4)], 290)]), tmp_path
    )
    assert figure(run, "guidellm", "tpot_mean_ms") == pytest.approx(400 / 6)
    assert figure(run, "guidellm", "tpot_p50_ms") == 72.5
    assert figure(run, "guidellm", "itl_mean_ms") == 25
    assert figure(run, "guidellm", "ttft_p50_ms") == 100
    assert run.metrics["ttft_p50_ms"].value == figure(run, "vllm-bench", "ttft_p50_ms") == 150


def test_a_late_client_and_the_end_of_the_stream(tmp_path: Path) -> None:
    """Due at 0, sent at 300, tokens at 400 and 420, stream closed at 450.

    Headway counts TTFT 400 and E2E 420 from the intended time. From the real send it is 100; the last token is 120 and
    the end 150 away; genai-bench's TPOT is (150 - 100) / 1, inference-perf's latency a token 150 / 2.
    """
    run = run_of(client_run([(300, [(400, 1), (420, 1)], 450)]), tmp_path)
    assert (run.metrics["ttft_mean_ms"].value, run.metrics["e2e_mean_ms"].value) == (400, 420)
    assert {figure(run, tool, "ttft_mean_ms") for tool in FORMULAS} == {100}
    ends = {tool: figure(run, tool, "e2e_mean_ms") for tool in FORMULAS}
    assert ends == {
        "guidellm": 150, "inference-perf": 150, "genai-bench": 150, "vllm-bench": 120, "sglang-bench": 120,
        "aiperf": 120,
    }  # fmt: skip
    assert figure(run, "genai-bench", "tpot_mean_ms") == 50
    assert figure(run, "inference-perf", "e2e_per_token_mean_ms") == 75


def test_stalls_hide_in_pooled_gaps_and_means(tmp_path: Path) -> None:
    """5 of 100 streams of 200 tokens stall once for 2 s: pooled gaps do not show it, the longest gap does.

    Of 19,900 gaps 5 are 2,020 ms: p99 is 20. The mean of a stalled one is 20 + 2000 / 199 = 30.05.
    """
    run = run_of(client_run([steady(100, 200, 20)] * 95 + [steady(100, 200, 20, stall=2000)] * 5), tmp_path)
    assert figure(run, "vllm-bench", "itl_p99_ms") == figure(run, "inference-perf", "itl_p99_ms") == 20
    assert figure(run, "vllm-bench", "tpot_p99_ms") == pytest.approx(20 + 2000 / 199)
    assert run.metrics["longest_gap_p99_ms"].value == 2020


def test_one_token_is_undefined_not_zero_and_failures_stay_apart(tmp_path: Path) -> None:
    """One answer of one token, one failure: no TPOT anywhere but where the first token is inside it."""
    run = run_of(client_run([(0, [(50, 1)], 50), (0, [], 70)]), tmp_path, ttft_ms=100)
    for tool, formulas in FORMULAS.items():
        tpot = run.by_tool[tool].get("tpot_mean_ms")
        if tool == "guidellm":
            assert tpot is not None and tpot.value == 50
        elif tpot is not None:
            assert (tpot.absence, tpot.note) == (Absence.NOT_APPLICABLE, "not defined (0 samples)")
        assert {formula.stem for formula in formulas if hasattr(formula, "stem")} >= {"ttft", "e2e"}
    assert run.by_tool["inference-perf"]["ttft_mean_ms"].absence is Absence.NOT_APPLICABLE
    assert run.metrics["attainment_share"].value == figure(run, "aiperf", "attainment_share") == 0.5
    assert figure(run, "inference-perf", "attainment_share") == 1  # the failure vanished


def test_a_modelled_run_has_the_same_figures_where_formulas_agree(tmp_path: Path) -> None:
    """Each token comes alone, each request is sent when it is due: only GuideLLM's weights and ranks make numbers."""
    run = summarise(play({"policy": "vllm_v1"}, {"requests": 60}), tmp_path)
    for tool in ("vllm-bench", "sglang-bench"):
        for name, found in run.by_tool[tool].items():
            ours = run.metrics.get(name)
            if ours is not None and ours.value is not None:
                assert found.value == pytest.approx(ours.value), (tool, name)
    assert figure(run, "guidellm", "tpot_p50_ms") != run.metrics["tpot_p50_ms"].value


def test_the_table_tells_both_formulas_and_why_they_differ(tmp_path: Path) -> None:
    runs = [run_of(client_run([steady(first, 3, 10)]), tmp_path) for first in (100, 200)]
    table = side_by_side(by_arm(runs), "guidellm")
    assert FormulaTable.model_validate(table.canonical()) == table
    rows = {row.metric: row for row in table.rows}
    row = rows["ttft_mean_ms"]
    assert row.headway_formula == METRICS["ttft_mean_ms"].formula
    theirs = row.arms["a"].theirs
    assert theirs is not None
    assert (row.called, theirs.value, theirs.n) == ("time_to_first_token_ms", 150, 2)
    assert "real send" in row.differs
    assert rows["itl_mean_ms"].arms["a"].headway is None  # pooled quantiles only
    old = runs[0].model_copy(update={"by_tool": {}})  # written before such figures were kept
    absent = side_by_side(by_arm([old]), "aiperf").rows[0].arms["a"].theirs
    assert absent is not None and absent.absence is Absence.NOT_MEASURED
    with pytest.raises(InputError, match="'tgi' is not one of guidellm"):
        side_by_side(by_arm(runs), "tgi")
    own = side_by_side(by_arm(runs), None)
    assert [row.metric for row in own.rows] == list(METRICS)
    assert all(row.arms["a"].theirs is None and row.headway_formula for row in own.rows)
