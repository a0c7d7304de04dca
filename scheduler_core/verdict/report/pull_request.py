"""The verdict as Markdown for a pull request: the decision first, the gates as a table, the rest folded away."""

from collections.abc import Sequence

from scheduler_core.verdict.gates import gate_words, label_words
from scheduler_core.verdict.schema import Comparison, Gate, IsolationVerdict, SweepVerdict, Verdict
from scheduler_core.verdict.wording import amount, digits, percent, within


def pull_request(verdict: Verdict) -> str:
    """Markdown of all comparisons, sweeps and isolations."""
    blocks = [f"## {verdict.experiment}", *(_comparison(comparison) for comparison in verdict.comparisons)]
    blocks += [_sweep(sweep) for sweep in verdict.sweeps]
    blocks += [_isolation(item) for item in verdict.isolations]
    return "\n\n".join([*blocks, f"Outputs: {verdict.identical_outputs}."]) + "\n"


def _comparison(comparison: Comparison) -> str:
    lines = [
        f"### {comparison.candidate} against {comparison.baseline}: "
        f"**{comparison.decision.value if comparison.decision else 'not comparable'}**",
        "",
        comparison.headline,
        "",
    ]
    lines += _gates(comparison.gates)
    lines += [f"- {obstacle}" for obstacle in comparison.obstacles]
    lines += [f"- why: {reason}" for reason in comparison.why]
    lines += [f"- cost: {line}" for line in comparison.costs]
    lines += [f"- {finding.rule}: {finding.symptom}: {finding.judgement}" for finding in comparison.diagnosis]
    lines += [f"- next: {step.title}: {step.because}" for step in comparison.next_steps]
    lines += ["", "<details><summary>Conditions</summary>", ""]
    lines += [f"- {condition}" for condition in comparison.conditions]
    return "\n".join([*lines, "", "</details>"])


def _sweep(sweep: SweepVerdict) -> str:
    word = sweep.decision.value if sweep.decision else "no decision"
    title = f"{sweep.candidate} against {sweep.baseline}" if sweep.candidate else sweep.baseline
    lines = [f"### Load sweep of {title}: **{word}**", "", sweep.headline, "", *_gates(sweep.gates)]
    lines += [
        f"| arm | load, {sweep.unit} | objectives met | goodput, requests/s | p95 TTFT |",
        "|---|---|---|---|---|",
    ]
    for arm in sweep.arms:
        for point in arm.curve:
            tail = "not measured" if point.ttft_p95_ms is None else amount(point.ttft_p95_ms, "ms")
            met = amount(point.attainment_share, "share")
            lines.append(f"| {arm.arm} | {digits(point.load)} | {met} | {digits(point.goodput_rps)} | {tail} |")
    lines += ["", *[f"- {obstacle}" for obstacle in sweep.obstacles], *[f"- {arm.sentence}" for arm in sweep.arms]]
    lines += [f"- next: {step.title}: {step.because}" for step in sweep.next_steps]
    return "\n".join([*lines, *[f"- {condition}" for condition in sweep.conditions]])


def _isolation(found: IsolationVerdict) -> str:
    word = found.decision.value if found.decision else "no decision"
    title = f"{found.candidate} against {found.baseline}" if found.candidate else found.baseline
    lines = [f"### Isolation of {found.of}, {title}: **{word}**", "", found.headline, "", *_gates(found.gates)]
    lines += [f"- {line}" for line in (*found.obstacles, *(arm.sentence for arm in found.arms))]
    lines += [f"- next: {step.title}: {step.because}" for step in found.next_steps]
    return "\n".join([*lines, *[f"- {condition}" for condition in found.conditions]])


def _gates(gates: Sequence[Gate]) -> list[str]:
    if not gates:
        return []
    head = ["| metric | baseline | candidate | change | label | gate | state |", "|---|---|---|---|---|---|---|"]
    return [*head, *[_row(gate) for gate in gates], ""]


def _row(gate: Gate) -> str:
    change = f"{percent(gate.change)} {within(gate.interval) if gate.interval else ''}".strip()
    cells = [
        gate.metric, amount(gate.baseline, gate.unit), amount(gate.candidate, gate.unit), change, label_words(gate),
        gate_words(gate), gate.state,
    ]  # fmt: skip
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
