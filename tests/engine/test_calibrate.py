import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_runner.calibrate.__main__ import main
from gpu_runner.calibrate.fit import fit
from gpu_runner.calibrate.grid import Point, points
from gpu_runner.calibrate.measure import Bench
from gpu_runner.calibrate.measured import Measured
from gpu_runner.calibrate.profile import calibrate
from gpu_runner.calibrate.stopping import Stopped
from gpu_runner.engine.executor import TorchExecutor
from scheduler_core.spec.job import MESSAGES, CalibrationJob
from scheduler_core.spec.target import Affine, Profile, TorchTarget
from scheduler_core.types.errors import InputError
from scheduler_core.types.shape import StepShape
from tests.engine.conftest import settings_for

TRUE = Affine(base_ns=2e6, prefill_token_ns=80_000, decode_request_ns=150_000, context_token_ns=900, prefill_pair_ns=20)


def affine_ns(shape: StepShape, cost: Affine = TRUE) -> float:
    """`spec.target.Affine` without knots, written out."""
    return (
        cost.base_ns
        + cost.prefill_token_ns * shape.prefill_tokens
        + cost.decode_request_ns * shape.decode_requests
        + cost.context_token_ns * shape.context_tokens
        + cost.prefill_pair_ns * shape.prefill_pairs
    )


def steps(*, noise: float = 0.0, drift: tuple[float, ...] = (0.0, 0.0, 0.0), outlier: float = 1.0) -> list[Measured]:
    """The whole grid measured by a machine whose cost is ``TRUE``, in rounds that drift by ``drift``."""
    choices = random.Random(0)
    made = []
    for round_, shift in enumerate(drift):
        for number, point in enumerate(points(kv_blocks=4096, block_size=16, model_length=4096)):
            chunk, history = point.chunk, point.history
            pairs = chunk * history + chunk * (chunk + 1) // 2
            shape = StepShape(chunk, point.batch, point.batch * (point.context + 2), pairs)
            exact = affine_ns(shape) * (1 + shift) * (1 + choices.gauss(0, noise))
            hit = outlier if choices.random() < 0.03 else 1.0
            made.append(Measured(shape, round(exact * hit), number, round_))
    return made


def test_exact_steps_give_the_exact_cost_back() -> None:
    fitted = fit(steps())
    assert fitted.cost.batch_knots == ()
    for name in ("base_ns", "prefill_token_ns", "decode_request_ns", "context_token_ns", "prefill_pair_ns"):
        assert getattr(fitted.cost, name) == pytest.approx(getattr(TRUE, name), rel=1e-3)
    assert fitted.residual_share < 1e-3
    assert fitted.drift_share < 1e-3
    assert fitted.held_out_error_share < 1e-3


def test_a_bend_in_the_cost_of_tokens_is_found() -> None:
    """Up to 64 tokens products cost nothing more, from there 200,000 ns a token: a plain sum cannot follow that."""
    bent = [
        replace(
            step,
            duration_ns=step.duration_ns
            + 200_000 * max(0, step.shape.prefill_tokens + step.shape.decode_requests - 64),
        )
        for step in steps()
    ]
    fitted = fit(bent)
    knots = dict(fitted.cost.batch_knots)
    assert fitted.held_out_error_share < 0.01
    assert knots[64] - knots[1] < 0.05 * (knots[128] - knots[64])


def test_few_tokens_beyond_a_knot_do_not_tell_how_the_cost_goes_on() -> None:
    """A step of 516 tokens took twice what it should; without prompts beyond 512 nothing says that of 1,024 tokens."""
    usual = [step for step in steps(noise=0.02) if step.shape.prefill_tokens <= 512]
    odd = next(step for step in usual if step.shape.prefill_tokens == 512 and not step.shape.decode_requests)
    odd = replace(odd, shape=odd.shape._replace(decode_requests=4), duration_ns=2 * odd.duration_ns, point=999)
    bent = [replace(step, duration_ns=step.duration_ns + 90_000 * min(64, sum(step.shape[:2]))) for step in usual]
    knots = fit([*bent, odd, replace(odd, round=1)]).cost.batch_knots
    assert knots and knots[-2][0] < 512


def test_noise_and_drift_come_back_at_their_size() -> None:
    """Residuals of 5 %; rounds at -4, 0 and +4 %, whose standard deviation is 4 %."""
    fitted = fit(steps(noise=0.05, drift=(-0.04, 0.0, 0.04)))
    assert fitted.residual_share == pytest.approx(0.05, rel=0.15)
    assert fitted.drift_share == pytest.approx(0.04, rel=0.3)
    assert 0.03 < fitted.held_out_error_share < 0.07


def test_interrupted_steps_do_not_bend_the_fit() -> None:
    fitted = fit(steps(noise=0.02, outlier=8.0))
    assert fitted.cost.decode_request_ns == pytest.approx(TRUE.decode_request_ns, rel=0.05)
    assert fitted.cost.prefill_token_ns == pytest.approx(TRUE.prefill_token_ns, rel=0.05)


def test_the_cost_is_raised_to_what_service_took() -> None:
    """Of the served steps every fourth took 1.4 times as long, as a busy machine makes them: 10 % more on average."""
    exact = steps()
    served = [
        replace(step, point=1000 + step.point, duration_ns=round(step.duration_ns * (1.4 if number % 4 == 0 else 1)))
        for number, step in enumerate([exact[0]] * 400)
    ]
    fitted = fit(exact, served)
    assert affine_ns(served[0].shape, fitted.cost) == pytest.approx(1.1 * affine_ns(served[0].shape), rel=0.001)


def test_hand_made_steps_say_how_the_cost_grows_and_served_ones_how_high_it_is() -> None:
    """In service, which has at most 16 requests, everything takes 1.25 times as long; so it does for 64."""
    grid = steps()
    served = [
        replace(step, point=1000 + step.point, duration_ns=round(1.25 * step.duration_ns))
        for step in grid
        if step.shape.decode_requests <= 16 and step.shape.prefill_tokens <= 512
    ]
    fitted = fit(grid, served)
    shape = StepShape(0, 64, 64 * 512, 0)
    assert affine_ns(shape, fitted.cost) == pytest.approx(1.25 * affine_ns(shape), rel=0.01)
    assert fitted.held_out_error_share < 0.01


def test_no_coefficient_is_negative() -> None:
    for measured in (steps(noise=0.4), steps(noise=0.4)[:40]):
        cost = fit(measured).cost.canonical()
        levels = [level for _tokens, level in cost.pop("batch_knots")]
        assert min(cost.values()) >= 0
        assert levels == sorted(levels)


def test_the_domain_is_the_largest_that_was_measured() -> None:
    measured = [Measured(StepShape(5, 2, 90, 40), 10, 0, 0), Measured(StepShape(3, 7, 60, 10), 10, 1, 1)]
    assert fit(measured * 3).domain == {
        "prefill_tokens": 5,
        "decode_requests": 7,
        "context_tokens": 90,
        "prefill_pairs": 40,
    }


@pytest.mark.parametrize(("kv_blocks", "model_length"), [(16, 4096), (128, 256), (512, 4096), (8192, 4096)])
def test_every_point_fits_pool_and_model(kv_blocks: int, model_length: int) -> None:
    grid = points(kv_blocks=kv_blocks, block_size=16, model_length=model_length)
    assert grid
    assert all(point.blocks(16) <= kv_blocks and point.longest <= model_length for point in grid)
    assert len(set(grid)) == len(grid)


def test_a_beginning_of_the_grid_already_spans_it() -> None:
    """Whoever has time for ten points must see decodes, short and long prompts, and a mix."""
    first = points(kv_blocks=2048, block_size=16, model_length=4096)[:10]
    assert any(point.batch and not point.chunk for point in first)
    prompts = [point.chunk for point in first if point.chunk and not point.batch]
    assert min(prompts) <= 32 and max(prompts) >= 512
    assert any(point.chunk and point.batch for point in first)


def test_a_measured_step_has_the_shape_of_its_point() -> None:
    """Three requests at context 20, warmed by 3 steps: the steps read 3 x 23 then 3 x 24 positions; the
    chunk of 6 behind 10 positions has 6 x 10 + 6 x 7 / 2 = 81 pairs, and its request joins.
    """
    executor = TorchExecutor(settings_for("tiny"))
    executor.load()
    executor.start()
    bench = Bench(executor)
    plain = bench.measure(Point(batch=3, context=20, steps=2), number=4, round_=1)
    assert [measured.shape for measured in plain] == [StepShape(0, 3, 69, 0), StepShape(0, 3, 72, 0)]
    (mixed,) = bench.measure(Point(batch=3, context=20, chunk=6, history=10), number=5, round_=1)
    assert mixed.shape == StepShape(6, 3, 69, 81, 1)
    assert all(measured.duration_ns > 0 for measured in plain)


def test_a_calibration_ends_in_a_profile_that_predicts_its_own_machine() -> None:
    shares: list[float] = []
    profile = calibrate(settings_for("tiny", kv_blocks=128), seconds=0.5, name="mine", progress=shares.append)
    assert profile.name == "mine"
    assert profile.steps_measured >= 24
    assert profile.cost.base_ns > 0
    assert profile.link is not None
    assert profile.link.token_bytes == 2 * 2 * 2 * 16 * 4
    assert 1e7 < profile.link.bytes_per_s < 1e12
    assert profile.kv_blocks == 128
    assert profile.model_length == 1024
    assert shares[-1] == 1.0
    assert shares == sorted(shares)


def test_a_pool_too_small_to_measure_is_refused() -> None:
    with pytest.raises(InputError, match="too few steps"):
        calibrate(settings_for("tiny", kv_blocks=1), seconds=0.1)


def test_a_calibration_can_be_stopped() -> None:
    with pytest.raises(Stopped):
        calibrate(settings_for("tiny"), seconds=60, stop=lambda: True)


def job(tmp_path: Path, **changes: object) -> Path:
    target = TorchTarget(model="tiny", device="cpu", threads=1, kv_blocks=64)
    made = CalibrationJob(run="r", name="mine", target=target, quick=True, workdir=str(tmp_path / "work"))
    data = json.loads(made.model_dump_json())
    path = tmp_path / "job.json"
    path.write_text(json.dumps(data | changes))
    return path


def test_the_process_speaks_the_protocol(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_runner.calibrate.__main__._QUICK_S", 0.3)
    assert main([str(job(tmp_path))]) == 0
    messages = [MESSAGES.validate_json(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [message.type for message in messages]
    assert kinds[0] == "state"
    assert kinds[-2:] == ["artifact", "result"]
    written = (tmp_path / "work" / "profile.json").read_text()
    assert Profile.model_validate_json(written).name == "mine"
    assert not list((tmp_path / "work").glob("*.partial"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": {"model": "./nope"}}, "neither a built-in shape"),
        ({"target": {"model": "tiny", "kv_blocks": 0}}, "kv_blocks"),
        ({"wall_limit_s": 0.001}, "longer than its limit of 0.001 s"),
    ],
)
def test_a_calibration_that_cannot_be_done_says_why(
    changes: dict[str, object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(job(tmp_path, **changes))]) == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["type"] == "result"
    assert last["outcome"] == "failed"
    assert said in last["reason"]
