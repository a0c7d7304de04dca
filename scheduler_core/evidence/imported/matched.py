"""The same request in two runs: differences that no survivor can bend."""

from dataclasses import dataclass

import numpy as np

from scheduler_core.evidence.imported.measured import Measured, MeasuredRun
from scheduler_core.types.reasons import Outcome


@dataclass(frozen=True, slots=True)
class Matched:
    """Differences candidate - baseline over requests that finished in both; quantiles of one run, no evidence of more.

    ``only_baseline`` and ``only_candidate`` finished in one run alone.
    """

    requests: int
    only_baseline: int
    only_candidate: int
    same_output_tokens: int
    ttft_p50_ms: float | None
    e2e_p50_ms: float | None
    faster_share: float | None

    def sentence(self) -> str:
        """The comparison in words."""
        if not self.requests:
            return "no request finished in both runs"
        ttft = f"{self.ttft_p50_ms:+.1f} ms" if self.ttft_p50_ms is not None else "not measured"
        return (
            f"{self.requests} requests finished in both runs ({self.only_baseline} in the baseline alone, "
            f"{self.only_candidate} in the candidate alone; {self.same_output_tokens} with the same output length): "
            f"median difference of TTFT {ttft}, of end-to-end {self.e2e_p50_ms:+.1f} ms, "
            f"{(self.faster_share or 0) * 100:.0f} % faster; one run each, so chance is not excluded"
        )


def matched(baseline: MeasuredRun, candidate: MeasuredRun) -> Matched | None:
    """Differences by place in the plan; None when the runs were not asked the same prompts in the same order."""
    if baseline.plan_digest() != candidate.plan_digest():
        return None
    pairs = list(zip(baseline.requests, candidate.requests, strict=True))
    both = [(old, new) for old, new in pairs if _done(old) and _done(new)]
    e2e = np.asarray([(new.e2e_s or 0) - (old.e2e_s or 0) for old, new in both])
    ttft = np.asarray([n.ttft_s - o.ttft_s for o, n in both if n.ttft_s is not None and o.ttft_s is not None])
    return Matched(
        requests=len(both),
        only_baseline=sum(_done(old) and not _done(new) for old, new in pairs),
        only_candidate=sum(_done(new) and not _done(old) for old, new in pairs),
        same_output_tokens=sum(old.output_tokens == new.output_tokens for old, new in both),
        ttft_p50_ms=float(np.median(ttft)) * 1e3 if len(ttft) else None,
        e2e_p50_ms=float(np.median(e2e)) * 1e3 if len(e2e) else None,
        faster_share=float((e2e < 0).mean()) if len(e2e) else None,
    )


def _done(request: Measured) -> bool:
    return request.outcome is Outcome.FINISHED and request.e2e_s is not None
