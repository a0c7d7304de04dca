"""One script of under five minutes that proves, or disproves, the CUDA path: ``python -m bench.gpu.check --out FILE``.

It checks greedy tokens against the CPU in fp32, with swapped blocks, shared and copied ones and steps in flight too,
every attention backend against gathered pages, with decode steps captured and not, and a mixture of experts. It
measures decode and prefill speed and the rate of KV copies to the host, calibrates, plays the same traffic on the
device and on the model fitted to it, and has a Celery worker of the device run one experiment to its verdict. Every
part is reported by itself, so one that fails hides no other. ``--device cpu`` rehearses the script where there is no
device; its output then says so and proves nothing.
"""

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench import fidelity, harness
from bench.gpu.moves import moves
from bench.gpu.product import product
from gpu_runner.calibrate.grid import Point
from gpu_runner.calibrate.measure import Bench
from gpu_runner.calibrate.profile import calibrate
from gpu_runner.engine.attention.choosing import FASTEST_FIRST
from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.settings import EngineSettings
from scheduler_core.spec.target import Profile, TargetSpec, TorchTarget
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import InputError
from scheduler_core.types.plan import Grant, Phase, StepPlan
from scheduler_core.types.time import NS_PER_S

_MIB = 1024**2
MIXTURE = {
    "model_type": "qwen3_moe", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 1024, "moe_intermediate_size": 256,
    "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": True, "vocab_size": 4096,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "tie_word_embeddings": True,
    "hidden_act": "silu",
}  # fmt: skip


class Checks:
    """The parts of the script, on one device."""

    def __init__(self, device: str, model: str, seconds: float) -> None:
        self.device = device
        self.model = model
        self.seconds = seconds
        self.profile: Profile | None = None

    def parity(self) -> dict[str, Any]:
        """Greedy fp32 tokens of both devices, by each backend that fp32 has and with decodes captured or not."""
        torch.backends.cuda.matmul.allow_tf32 = False
        expected = _serve(_loaded("demo-s", "cpu", "float32"))
        figures: dict[str, Any] = {}
        for name, attention, graphs in (
            ("auto", "auto", True),
            ("launched", "auto", False),
            ("gather", "gather", False),
        ):
            executor = _loaded("demo-s", self.device, "float32", attention=attention, decode_graphs=graphs)
            actual = _serve(executor)
            equal = _equal(expected, actual)
            figures[f"{name}_attention"] = executor.attention
            figures[f"{name}_equal_requests"] = equal
            figures[f"{name}_same"] = equal == len(expected)
        return figures

    def backends(self) -> dict[str, Any]:
        """Each backend's bf16 tokens beside gathered pages, up to the first reported tie, and its decode rate."""
        figures: dict[str, Any] = {}
        expected = _serve(_loaded("shape-m", self.device, "bfloat16", attention="gather"))
        for attention in FASTEST_FIRST[self.device]:
            for graphs in (False, True):
                name = f"{attention}_captured" if graphs else attention
                try:
                    executor = _loaded(
                        "shape-m", self.device, "bfloat16", kv_blocks=2560, attention=attention, decode_graphs=graphs
                    )
                except InputError as reason:  # not installed here, which is no failure
                    figures[name] = str(reason)
                    continue
                figures[f"{name}_equal_requests"] = _equal(expected, _serve(executor))
                figures[f"{name}_tokens_per_s"] = _decode_rate(executor)
        return figures

    def mixture(self) -> dict[str, Any]:
        """A mixture of experts in bf16 beside the CPU, up to the first reported tie, and its decode rate.

        From compute capability 9.0 on its experts are grouped, and its decodes captured (``decode_graphs``).
        """
        with tempfile.TemporaryDirectory(prefix="headway-check-") as folder:
            (Path(folder) / "config.json").write_text(json.dumps(MIXTURE), encoding="utf-8")
            expected = _serve(_loaded(f"random:{folder}", "cpu", "bfloat16"))
            executor = TorchExecutor(EngineSettings(f"random:{folder}", self.device, "bfloat16", kv_blocks=2560))
            marks = executor.load().fingerprint
            executor.start()
            return {
                "decode_graphs_count": marks["decode_graphs"],
                "equal_requests": _equal(expected, _serve(executor)),
                "decode_tokens_per_s": _decode_rate(executor),
            }

    def speed(self) -> dict[str, Any]:
        """Decode and prefill rates of the built-in shapes in bf16."""
        figures: dict[str, Any] = {}
        for model in ("demo-s", "shape-m", "shape-l"):
            executor = _loaded(model, self.device, "bfloat16", kv_blocks=2560)
            prefill = [Bench(executor).measure(Point(chunk=2048), number=1, round_=0)[0] for _ in range(3)]
            figures[f"decode_tokens_per_s_{model}"] = _decode_rate(executor)
            figures[f"prefill_tokens_per_s_{model}"] = round(
                2048 * NS_PER_S / _median([m.duration_ns for m in prefill])
            )
            figures[f"attention_{model}"] = executor.attention
        return figures

    def copies(self) -> dict[str, Any]:
        """Rates of copies between device and pinned host memory, 256 MiB at a time."""
        if self.device != "cuda":
            return {"skipped": "no device"}
        host = torch.empty(256 * _MIB, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(256 * _MIB, dtype=torch.uint8, device="cuda")
        return {
            "to_device_gb_per_s": _copy_rate(there, host),
            "to_host_gb_per_s": _copy_rate(host, there),
        }

    def moves(self) -> dict[str, Any]:
        """Swapped blocks and steps in flight."""
        return moves(self.device)

    def product(self) -> dict[str, Any]:
        """One experiment from REST through a Celery worker to its verdict."""
        return product(self.device)

    def calibration(self) -> dict[str, Any]:
        """The fitted cost of one shape in bf16 and how well it predicts steps that were left out."""
        settings = EngineSettings(self.model, self.device, "bfloat16", kv_blocks=2048)
        self.profile = calibrate(settings, seconds=self.seconds, name="gpu-check")
        return {"held_out_error_share": self.profile.held_out_error_share, "profile": self.profile.canonical()}

    def experiment(self) -> dict[str, Any]:
        """The same traffic on the device and on the model calibrated to it, with each relative difference."""
        if self.profile is None:
            raise RuntimeError("there is no calibration to compare with")
        subject = fidelity.Subject(self.model)
        real = TorchTarget(model=self.model, device=self.device, dtype="bfloat16", kv_blocks=2048)
        rate_rps = 0.5 * fidelity.capacity_rps(subject, self.profile)
        case = fidelity.Case("half", subject.traffic(count=60, rate_rps=rate_rps))
        errors = fidelity.Errors()
        for _ in range(2):
            played = fidelity.play(case, TargetSpec(torch=real), self.profile)
            errors.take(played, fidelity.predict(case, self.profile))
        return errors.figures()


def _loaded(model: str, device: str, dtype: str, **settings: Any) -> TorchExecutor:
    executor = TorchExecutor(EngineSettings(model, device, dtype, **settings))
    executor.load()
    executor.start()
    return executor


def _serve(executor: TorchExecutor) -> list[tuple[list[int], int]]:
    """Twelve requests decoded together after their prompts: tokens, and the place of the first tie."""
    answers: list[tuple[list[int], int]] = []
    blocks = iter(range(executor.settings.kv_blocks))
    grants = []
    for index in range(12):
        prompt = 40 + 23 * index
        executor.open(PlannedRequest(index, 0, prompt, 32, 32, seed=index))
        table = tuple(next(blocks) for _ in range(-(-(prompt + 32) // 16)))
        grants.append(Grant(index, 0, 0, prompt, table, True, Phase.PREFILL))
        answers.append(([], 32))
    for number in range(32):
        executor.launch(StepPlan(number, tuple(grants)))
        result = executor.wait(None)
        assert result is not None
        for index, yielded in enumerate(result.grants):
            tokens, tie = answers[index]
            answers[index] = (tokens, min(tie, number) if yielded.tie_margin is not None else tie)
            assert yielded.token is not None, result.failure
            tokens.append(yielded.token)
        grants = [Grant(g.request, 0, g.start + g.length, 1, (), True, Phase.DECODE) for g in grants]
    for index in range(len(answers)):
        executor.close(index)
    return answers


def _decode_rate(executor: TorchExecutor) -> int:
    """Tokens per second of steps that decode 64 rows of context 360."""
    steps = Bench(executor).measure(Point(batch=64, context=360, steps=16), number=0, round_=0)
    return round(64 * NS_PER_S / _median([step.duration_ns for step in steps]))


def _equal(expected: list[tuple[list[int], int]], actual: list[tuple[list[int], int]]) -> int:
    return sum(_agree(one, two) for one, two in zip(expected, actual, strict=True))


def _agree(one: tuple[list[int], int], two: tuple[list[int], int]) -> bool:
    end = min(one[1], two[1])
    return one[0][:end] == two[0][:end]


def _copy_rate(target: torch.Tensor, source: torch.Tensor) -> float:
    best = 0.0
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, source.nbytes / (time.perf_counter() - began) / 1e9)
    return round(best, 2)


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


def main() -> int:
    """0 when every part ran and parity holds."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.check", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=None, help="also write the JSON there")
    parser.add_argument("--model", default="shape-m", help="what is calibrated and served in the experiment")
    parser.add_argument("--seconds", type=float, default=30, help="length of the calibration")
    parser.add_argument("--only", nargs="*", default=None, help="names of parts")
    options = parser.parse_args()
    checks = Checks(options.device, options.model, options.seconds)
    parts: list[Callable[[], dict[str, Any]]] = [
        checks.parity, checks.backends, checks.mixture, checks.moves, checks.speed, checks.copies, checks.calibration,
        checks.experiment, checks.product,
    ]  # fmt: skip
    name = torch.cuda.get_device_name() if options.device == "cuda" and torch.cuda.is_available() else "none"
    answer: dict[str, Any] = {"device": name, "torch": torch.__version__, "machine": harness.machine()}
    failed = False
    for part in parts:
        if options.only is not None and part.__name__ not in options.only:
            continue
        harness.say(f"{part.__name__} ...")
        began = time.monotonic()
        try:
            found = part()
        except Exception as error:
            failed = True
            traceback.print_exc()
            found = {"failed": f"{type(error).__name__}: {error}"}
        answer[part.__name__] = {**found, "wall_s": round(time.monotonic() - began, 2)}
        failed |= not all(value for key, value in found.items() if key.endswith("_same"))
    text = json.dumps(answer, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
