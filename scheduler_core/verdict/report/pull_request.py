"""The verdict as Markdown for a pull request: the decision first, the gates as a table, the rest folded away."""

from scheduler_core.verdict.gates import gate_words, label_words
from scheduler_core.verdict.schema import Comparison, Gate, Verdict
from scheduler_core.verdict.wording import amount, percent, within


def pull_request(verdict: Verdict) -> str:
    """Markdown of all comparisons."""
    blocks = [f"## {verdict.experiment}", *(_comparison(comparison) for comparison in verdict.comparisons)]
    return "\n\n".join([*blocks, f"Outputs: {verdict.identical_outputs}."]) + "\n"


def _comparison(comparison: Comparison) -> str:
    lines = [
        f"### {comparison.candidate} against {comparison.baseline}: "
        f"**{comparison.decision.value if comparison.decision else 'not comparable'}**",
        "",
        comparison.headline,
        "",
    ]
    if comparison.gates:
        lines += ["| metric | baseline | candidate | change | label | gate | state |", "|---|---|---|---|---|---|---|"]
        lines += [_row(gate) for gate in comparison.gates]
        lines.append("")
    lines += [f"- {obstacle}" for obstacle in comparison.obstacles]
    lines += [f"- why: {reason}" for reason in comparison.why]
    lines += [f"- {finding.rule}: {finding.symptom}: {finding.judgement}" for finding in comparison.diagnosis]
    lines += [f"- next: {step.title}: {step.because}" for step in comparison.next_steps]
    lines += ["", "<details><summary>Conditions</summary>", ""]
    lines += [f"- {condition}" for condition in comparison.conditions]
    return "\n".join([*lines, "", "</details>"])


def _row(gate: Gate) -> str:
    change = f"{percent(gate.change)} {within(gate.interval) if gate.interval else ''}".strip()
    cells = [
        gate.metric, amount(gate.baseline, gate.unit), amount(gate.candidate, gate.unit), change, label_words(gate),
        gate_words(gate), gate.state,
    ]  # fmt: skip
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
