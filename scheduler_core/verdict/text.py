"""A verdict in a terminal, in the words that the page shows too."""

from scheduler_core.verdict.gates import gate_words, label_words
from scheduler_core.verdict.schema import Comparison, Gate, IsolationVerdict, LoadPoint, NextStep, SweepVerdict, Verdict
from scheduler_core.verdict.wording import amount, percent, within


def render(verdict: Verdict) -> str:
    """The whole verdict: one block per comparison or sweep, then what the outputs say."""
    blocks = [comparison_text(comparison) for comparison in verdict.comparisons]
    blocks += [sweep_text(sweep) for sweep in verdict.sweeps]
    blocks += [isolation_text(item) for item in verdict.isolations]
    return "\n\n".join([*blocks, f"outputs  {verdict.identical_outputs}"]) + "\n"


def comparison_text(comparison: Comparison) -> str:
    """Headline, gates, reasons, conditions, next steps."""
    word = comparison.decision.value if comparison.decision else "not comparable"
    lines = [
        f"{word:<8} {comparison.candidate} against {comparison.baseline}, {comparison.pairs} x "
        f"{comparison.requests_per_run} requests each, plan {comparison.plan_digest or 'none'}",
        f"  {comparison.headline}",
    ]
    width = max((len(gate.metric) for gate in comparison.gates), default=0)
    lines += [f"  {gate_line(gate, width)}" for gate in comparison.gates]
    lines += [f"  obstacle  {obstacle}" for obstacle in comparison.obstacles]
    lines += [f"  why   {reason}" for reason in comparison.why]
    lines += [f"  cost  {line}" for line in comparison.costs]
    for finding in comparison.diagnosis:
        lines.append(f"  {finding.rule:<5} {finding.symptom} ({finding.problem}): {finding.judgement}")
        lines.append(f"        {'; '.join([*finding.evidence, *finding.thresholds])}")
    lines += [f"  holds {condition}" for condition in comparison.conditions]
    lines += [step_line(step) for step in comparison.next_steps]
    return "\n".join(lines)


def step_line(step: NextStep) -> str:
    """A next experiment as a line."""
    return f"  next  {step.title}: {step.because}" + (f"  ({step.command})" if step.command else "")


def sweep_text(sweep: SweepVerdict) -> str:
    """Headline, each arm's curve with its capacity, gates, conditions."""
    word = sweep.decision.value if sweep.decision else "no decision"
    lines = [f"{word:<8} {sweep.headline}"]
    for arm in sweep.arms:
        lines.append(f"  {arm.sentence}")
        lines += [f"    {_load_line(point, sweep.unit)}" for point in arm.curve]
    width = max((len(gate.metric) for gate in sweep.gates), default=0)
    lines += [f"  {gate_line(gate, width)}" for gate in sweep.gates]
    lines += [f"  obstacle  {obstacle}" for obstacle in sweep.obstacles]
    lines += [f"  holds {condition}" for condition in sweep.conditions]
    lines += [step_line(step) for step in sweep.next_steps]
    return "\n".join(lines)


def isolation_text(found: IsolationVerdict) -> str:
    """Headline, what each arm lets through, gates, conditions, next steps."""
    word = found.decision.value if found.decision else "no decision"
    width = max((len(gate.metric) for gate in found.gates), default=0)
    lines = [f"{word:<8} {found.headline}", *(f"  {arm.sentence}" for arm in found.arms)]
    lines += [f"  {gate_line(gate, width)}" for gate in found.gates]
    lines += [f"  obstacle  {obstacle}" for obstacle in found.obstacles]
    lines += [f"  holds {condition}" for condition in found.conditions]
    return "\n".join([*lines, *(step_line(step) for step in found.next_steps)])


def _load_line(point: LoadPoint, unit: str) -> str:
    tail = amount(point.ttft_p95_ms, "ms") if point.ttft_p95_ms is not None else "not measured"
    return (
        f"{amount(point.load, unit)}: objectives met {amount(point.attainment_share, 'share')}, "
        f"goodput {amount(point.goodput_rps, 'requests/s')}, p95 TTFT {tail}"
    )


def gate_line(gate: Gate, width: int = 0) -> str:
    """One gate as a line of the table."""
    if gate.change is None:
        return gate.sentence
    values = f"{amount(gate.baseline, gate.unit)} -> {amount(gate.candidate, gate.unit)}"
    bracket = within(gate.interval) if gate.interval else "no interval"
    return (
        f"{gate.metric:<{width}}  {values}  {percent(gate.change)} {bracket}  {label_words(gate)}  "
        f"{gate_words(gate)}  {gate.state}"
    )
