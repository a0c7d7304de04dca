"""Live samples agree with the records they are folded from."""

from dataclasses import replace
from itertools import pairwise

from scheduler_core.evidence.live.sampler import LiveSampler, Tee
from scheduler_core.spec.job import Sample
from scheduler_core.testing.builders import ListSink
from scheduler_core.types.records import Record, RunStarted, Step
from tests.evidence.played import play
from tests.evidence.scenes import Scene, found_again, ns


def sample(records: list[Record], interval_ms: float) -> list[Sample]:
    samples: list[Sample] = []
    sampler = LiveSampler(interval_ns=ns(interval_ms), total=1, on_sample=samples.append)
    for record in records:
        sampler.write(record)
    sampler.flush()
    return samples


def test_worked_samples() -> None:
    """Prefill of 10 tokens 0-40, two decodes to 60 and 80; sampled every 50 ms, the last at 80.

    At 50: one request runs, one token (TTFT 40), 10 prompt tokens in 0.05 s, busy 40 of 50 ms.
    At 80: gaps 20 and 20, all done.
    """
    scene = Scene(1)
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 40, [(0, 10)])
    scene.step(40, 60, [(0, 1)])
    scene.step(60, 80, [(0, 1)])
    scene.finish(0, 80)
    first, last = sample(scene.end(80), 50)
    assert (first.t_s, first.running, first.done, first.ttft_p50_ms, first.gap_p50_ms) == (0.05, 1, 0, 40, None)
    assert (first.prefill_tokens_per_s, first.busy_share) == (200, 0.8)
    assert (last.t_s, last.running, last.waiting, last.done, last.gap_p95_ms) == (0.08, 0, 0, 1, 20)
    assert (last.decode_tokens_per_s, last.step_decode_tokens) == (25, 1)


def test_quiet_stretch_yields_one_sample() -> None:
    scene = Scene(2)
    for request, at in ((0, 0), (1, 1000)):
        scene.arrive(request, at)
        scene.admit(request, at)
        scene.step(at, at + 10, [(request, 10)])
        scene.finish(request, at + 10)
    times = [found.t_s for found in sample(scene.end(1010), 100)]
    assert times == [1.0, 1.01]


def test_samples_of_a_whole_run() -> None:
    samples = sample(play({"policy": "vllm_v1"}, {"arrivals": {"poisson": {"rate_rps": 20}}}, kv_blocks=110), 200)
    assert all(left.t_s < right.t_s for left, right in pairwise(samples))
    for name in ("done", "preemptions"):
        counts = figures(samples, name)
        assert counts == sorted(counts)
    used, cached, free = (figures(samples, name) for name in ("kv_used", "kv_cached", "kv_free"))
    assert {sum(blocks) for blocks in zip(used, cached, free, strict=True)} == {110}
    assert all(0 <= share <= 1 for share in figures(samples, "busy_share"))
    assert all(0 <= (found.hit_rate or 0) <= 1 for found in samples)
    assert (samples[-1].done, samples[-1].running, samples[-1].waiting) == (120, 0, 0)
    assert figures(samples, "preemptions")[-1] > 0


def test_samples_of_kernels_look_at_requests_once_and_say_the_same() -> None:
    records = list(play({"policy": "vllm_v1"}, {"arrivals": {"poisson": {"rate_rps": 20}}}, kv_blocks=110))
    kernels = [replace(record, source="kernel") if isinstance(record, RunStarted) else record for record in records]
    assert sample(kernels, 50) == sample(records, 50)


def figures(samples: list[Sample], name: str) -> list[float]:
    """A figure that an instance of ours tells in every sample."""
    found = [getattr(item, name) for item in samples]
    assert None not in found
    return found


def test_the_account_is_checked_as_it_goes_and_names_the_first_law_broken() -> None:
    """One block of the pool is lost in the tenth step: named with law, step and numbers in every sample from there."""
    records = list(play({"policy": "vllm_v1"}, kv_blocks=110))
    whole = sample(records, 50)
    assert {found.account_broken for found in whole} == {None}
    checks = [found.account_checks or 0 for found in whole]
    assert checks == sorted(checks) and checks[-1] > checks[0] > 0
    place = [number for number, record in enumerate(records) if isinstance(record, Step)][9]
    step = records[place]
    assert isinstance(step, Step)
    lost = replace(step, kv_free=step.kv_free - 1)
    broken = sample([*records[:place], lost, *records[place + 1 :]], 50)
    told = f"blocks conserved, step {step.id}: {step.kv_used} + {step.kv_cached} + {step.kv_free - 1} is not 110"
    assert {found.account_broken for found in broken} == {None, told}
    assert broken[-1].account_broken == told


def test_only_first_look_ups_count_as_hits() -> None:
    assert sample(found_again(), 1000)[-1].hit_rate == 0


def test_tee_hands_on_in_order() -> None:
    one, other = ListSink(), ListSink()
    sink = Tee(one, other)
    records = Scene(1).end(0)
    for record in records:
        sink.write(record)
    assert one.records == other.records == records
