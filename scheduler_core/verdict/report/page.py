"""One self-contained page per run and per experiment: it opens offline, needs no script, and prints well."""

import html
from collections.abc import Iterable, Sequence
from importlib.resources import files

from scheduler_core.evidence.account import account
from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.evidence.schema import Figure, RunSummary
from scheduler_core.verdict.attribution import PARTS
from scheduler_core.verdict.gates import gate_words, label_words
from scheduler_core.verdict.report.charts import bar_chart, interval_chart
from scheduler_core.verdict.report.curves import sweep_charts
from scheduler_core.verdict.report.questions import answers
from scheduler_core.verdict.schema import Comparison, Finding, Gate, IsolationVerdict, SweepVerdict, Verdict
from scheduler_core.verdict.titles import metric_title
from scheduler_core.verdict.wording import amount, cause_words, percent, within

CHARTED = ("ttft_p95_ms", "tpot_p95_ms", "longest_gap_p95_ms", "goodput_rps")


def experiment_page(verdict: Verdict, runs: Sequence[RunSummary]) -> str:
    """The page of an experiment: verdicts first, then every run's headline figures."""
    body = verdict_parts(verdict)
    body += [bar_chart(f"{name}, mean over runs", _means(runs, name), METRICS[name].unit) for name in CHARTED]
    body.append("<h2>Runs</h2>" + table(("run", "arm", "repeat", *CHARTED, "audit"), [_run_row(run) for run in runs]))
    counted = [f"{run.run}: {account(run.offered, run.outcomes, run.unsent).sentence()}" for run in runs]
    body.append(_list("Requests", counted))
    return page(verdict.experiment, body)


def verdict_parts(verdict: Verdict) -> list[str]:
    """A verdict as parts of a page."""
    parts = [_comparison(comparison) for comparison in verdict.comparisons]
    parts += [_sweep(sweep) for sweep in verdict.sweeps]
    parts += [_isolation(item) for item in verdict.isolations]
    return [*parts, f"<p>Outputs: {html.escape(verdict.identical_outputs)}.</p>"]


def run_page(run: RunSummary) -> str:
    """The page of one run: what it was, how requests ended, every figure with its formula."""
    facts = {
        "arm": run.arm, "repeat": str(run.repeat), "evidence level": run.level, "source": run.source,
        "requests": f"{run.measured} measured of {run.offered} offered", "plan": run.plan_digest,
        "account": account(run.offered, run.outcomes, run.unsent).sentence(),
        "not finished": ", ".join(f"{count} {reason}" for reason, count in run.reasons.items()) or "none",
        "outputs": run.outputs_digest or "no real tokens", "audit": _audit(run),
    }  # fmt: skip
    body = [table(("", ""), list(facts.items()))]
    if not run.audit.passed:
        broken = [(violation.rule, violation.where, violation.message) for violation in run.audit.violations]
        body.append("<h2>Violations</h2>" + table(("rule", "where", "numbers"), broken))
    body += _run_charts(run)
    body.append("<h2>Questions</h2>" + table(("question", "answer", "fields"), answers(run)))
    rows = [
        (name, _figure(figure), str(figure.n or ""), METRICS[name].formula if name in METRICS else "")
        for name, figure in run.metrics.items()
    ]
    body.append("<h2>Figures</h2>" + table(("metric", "value", "n", "formula"), rows))
    return page(f"Run {run.run}", body)


def _run_charts(run: RunSummary) -> list[str]:
    """How requests ended, how long they took, where the time went and what made the longest gaps."""
    ended = {name: float(count) for name, count in account(run.offered, run.outcomes, run.unsent).ended.items()}
    parts = {words: value for name, words in PARTS.items() if (value := _value(run, name))}
    quantiles = {
        metric_title(f"{stem}_{share}_ms"): value
        for stem in ("ttft", "tpot", "longest_gap", "e2e")
        for share in ("p50", "p95", "p99")
        if (value := _value(run, f"{stem}_{share}_ms")) is not None
    }
    causes = {cause_words(cause): float(count) for cause, count in run.longest_gap_causes.items()}
    return [
        bar_chart("What became of the requests that were sent", ended, "requests"),
        bar_chart("Latency of finished requests", quantiles, "ms"),
        bar_chart("Where a request's time went, mean", parts, "ms"),
        bar_chart("Requests by what made their longest gap", causes, "requests"),
    ]


def _value(run: RunSummary, name: str) -> float | None:
    figure = run.metrics.get(name)
    return None if figure is None else figure.value


def _comparison(comparison: Comparison) -> str:
    word = comparison.decision.value if comparison.decision else "not comparable"
    title = html.escape(f"{comparison.candidate} against {comparison.baseline}")
    parts = [f'<section><h2>{title} <span class="tag {word.replace(" ", "-")}">{word}</span></h2>']
    parts.append(f"<p>{html.escape(comparison.headline)}</p>")
    parts.append(_gates(comparison.gates))
    parts.append(_list("Obstacles", comparison.obstacles))
    parts.append(_list("Why", comparison.why))
    parts.append(_list("Cost", comparison.costs))
    parts.append(_list("Diagnosis", [_finding(found) for found in comparison.diagnosis]))
    parts.append(_list("Layer and metric", [effect.sentence for effect in comparison.effects]))
    parts.append(_list("Conditions", comparison.conditions))
    parts.append(_list("Next", [f"{step.title}: {step.because}" for step in comparison.next_steps]))
    return "".join(parts) + "</section>"


def _finding(found: Finding) -> str:
    cited = "; ".join([*found.evidence, *found.thresholds])
    return f"{found.rule}: {found.symptom}. {found.judgement}. {cited}"


def _sweep(sweep: SweepVerdict) -> str:
    word = sweep.decision.value if sweep.decision else "no decision"
    title = f"{sweep.candidate} against {sweep.baseline}" if sweep.candidate else sweep.baseline
    parts = [
        f'<section><h2>Load sweep of {html.escape(title)} <span class="tag {word.replace(" ", "-")}">{word}</span></h2>'
    ]
    parts.append(f"<p>{html.escape(sweep.headline)}</p>{_gates(sweep.gates)}{sweep_charts(sweep)}")
    parts.append(_list("Obstacles", sweep.obstacles) + _list("Capacity", [arm.sentence for arm in sweep.arms]))
    parts.append(_list("Conditions", sweep.conditions))
    parts.append(_list("Next", [f"{step.title}: {step.because}" for step in sweep.next_steps]))
    return "".join(parts) + "</section>"


def _isolation(found: IsolationVerdict) -> str:
    word = found.decision.value if found.decision else "no decision"
    title = f"{found.candidate} against {found.baseline}" if found.candidate else found.baseline
    parts = [
        f"<section><h2>Isolation of {html.escape(found.of)}, {html.escape(title)} "
        f'<span class="tag {word.replace(" ", "-")}">{word}</span></h2>'
    ]
    shifts = {arm.arm: arm.shift for arm in found.arms if arm.shift is not None}
    chart = bar_chart(f"{found.metric}, growth with more others", shifts, "share")
    parts.append(f"<p>{html.escape(found.headline)}</p>{_gates(found.gates)}{chart}")
    parts.append(_list("Obstacles", found.obstacles) + _list("Arms", [arm.sentence for arm in found.arms]))
    parts.append(_list("Conditions", found.conditions))
    parts.append(_list("Next", [f"{step.title}: {step.because}" for step in found.next_steps]))
    return "".join(parts) + "</section>"


def _gates(gates: Sequence[Gate]) -> str:
    rows = [
        (
            gate.metric, amount(gate.baseline, gate.unit), amount(gate.candidate, gate.unit),
            f"{percent(gate.change)} {within(gate.interval) if gate.interval else ''}", label_words(gate),
            gate_words(gate), gate.state,
        )
        for gate in gates
    ]  # fmt: skip
    head = ("metric", "baseline", "candidate", "change", "label", "gate", "state")
    return interval_chart(gates) + table(head, rows) if rows else ""


def _means(runs: Sequence[RunSummary], metric: str) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for run in runs:
        figure = run.metrics.get(metric)
        if figure is not None and figure.value is not None:
            found.setdefault(run.arm, []).append(figure.value)
    return {arm: sum(values) / len(values) for arm, values in found.items()}


def _run_row(run: RunSummary) -> tuple[str, ...]:
    figures = [run.metrics.get(name) for name in CHARTED]
    return (run.run, run.arm, str(run.repeat), *(_figure(figure) for figure in figures), _audit(run))


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return "not in the summary"
    if figure.value is None:
        return f"{figure.absence}" + (f" ({figure.note})" if figure.note else "")
    return amount(figure.value, figure.unit) + (f" ({figure.note})" if figure.note else "")


def _audit(run: RunSummary) -> str:
    return "passed" if run.audit.passed else f"{len(run.audit.violations)} violations"


def _list(title: str, items: Iterable[str]) -> str:
    rows = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    return f"<h3>{title}</h3><ul>{rows}</ul>" if rows else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts, escaped."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def page(title: str, body: Sequence[str]) -> str:
    """A whole page around ``body``, with its style inside."""
    style = files("scheduler_core.verdict.report").joinpath("page.css").read_text(encoding="utf-8")
    name = html.escape(title)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}</title><style>{style}</style></head><body><main><h1>{name}</h1>{''.join(body)}</main></body></html>\n"
    )
