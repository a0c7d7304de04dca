"""What a diagnosis reads: mean figures of an arm's runs, and changes against the baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.thresholds import THRESHOLDS, ThresholdName
from scheduler_core.verdict.wording import amount, percent


@dataclass
class View:
    """One arm's figures, the baseline's beside them where there is one; notes every figure and threshold it gives."""

    runs: Sequence[RunSummary]
    baseline: Sequence[RunSummary] = ()
    thresholds: Mapping[ThresholdName, float] = field(default_factory=dict)
    cited: dict[str, str] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)

    def fresh(self) -> "View":
        """The same figures with nothing noted yet."""
        return View(self.runs, self.baseline, self.thresholds)

    def limit(self, name: ThresholdName) -> float:
        """A threshold, the caller's before the default."""
        value = self.thresholds.get(name, THRESHOLDS[name])
        self.used[name] = value
        return value

    def value(self, metric: str) -> float | None:
        """Mean of a figure over the arm's runs; None when any run has none."""
        found = mean(self.runs, metric)
        if found is not None:
            unit = METRICS[metric].unit if metric in METRICS else ""
            self.cited[metric] = f"{metric} {amount(found, unit)}"
        return found

    def rise(self, metric: str) -> float | None:
        """Candidate - baseline of a share; None when either has none."""
        old, new = mean(self.baseline, metric) if self.baseline else None, self.value(metric)
        return None if old is None or new is None else new - old

    def change(self, metric: str) -> float | None:
        """Relative change of the means against the baseline; None without figures on both sides."""
        new, old = mean(self.runs, metric), mean(self.baseline, metric)
        if new is None or not old:
            return None
        change = new / old - 1
        unit = METRICS[metric].unit if metric in METRICS else ""
        self.cited[metric] = f"{metric} {amount(old, unit)} -> {amount(new, unit)} ({percent(change)})"
        return change

    def cause_share(self, prefix: str) -> float:
        """Share of longest gaps whose cause begins with ``prefix``."""
        counts: dict[str, int] = {}
        for run in self.runs:
            for cause, count in run.longest_gap_causes.items():
                counts[cause] = counts.get(cause, 0) + count
        total = sum(counts.values())
        share = sum(count for cause, count in counts.items() if cause.startswith(prefix)) / total if total else 0.0
        self.cited["longest_gap_causes"] = f"longest_gap_causes {share * 100:.0f} % {prefix}"
        return share

    def attained(self, objective: str) -> dict[str, float]:
        """Per tier that has this objective: share of its offered requests that met it."""
        shares: dict[str, float] = {}
        for name in {name for run in self.runs for name in run.tiers}:
            tiers = [run.tiers[name] for run in self.runs if name in run.tiers]
            if all(objective in tier.by_objective for tier in tiers):
                offered = sum(tier.offered for tier in tiers)
                shares[name] = sum(tier.by_objective[objective] for tier in tiers) / max(offered, 1)
        for name, share in shares.items():
            self.cited[f"{name} {objective}"] = f"tier {name}: {objective} met by {share * 100:.0f} %"
        return shares

    def reasons(self, *words: str) -> int:
        """Requests that did not finish for a reason that contains one of ``words``."""
        found = {
            reason: count
            for run in self.runs
            for reason, count in run.reasons.items()
            if any(word in reason for word in words)
        }
        for reason, count in found.items():
            self.cited[reason] = f"{count} requests {reason}"
        return sum(found.values())


def mean(runs: Sequence[RunSummary], metric: str) -> float | None:
    """Mean of a figure over runs; None when there is none, or when any run lacks it."""
    figures = [run.metrics.get(metric) for run in runs]
    values = [figure.value for figure in figures if figure is not None and figure.value is not None]
    return sum(values) / len(values) if values and len(values) == len(runs) else None
