"""How a run stands to the model, on a terminal."""

from typing import Annotated, Any

import typer

from headway.cli.options import Json, Token, Url
from headway.cli.output import as_json

_FIGURES = ("ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms", "tpot_mean_ms", "tpot_p50_ms", "tpot_p99_ms",
            "throughput_tokens_per_s")  # fmt: skip
_KINDS_AT_MOST = 8


def trust(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run (run_...) of an installation.")],
    *,
    as_data: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show how far the model may be trusted: bands of a modelled run, or a run of kernels beside the model."""
    from headway.client import Client
    from headway.config import connection
    from scheduler_core.types.errors import InputError, Problem

    with Client(connection(url=url, token=token)) as client:
        summary = client.get(f"/runs/{run}")["summary"] or {}
    found = {name: summary[name] for name in ("predicted", "against_model") if summary.get(name)}
    if not found:
        raise InputError(
            [Problem(run, "has nothing of a model: calibrate its model on this installation, then run it")]
        )
    if as_data:
        as_json(found)
        return
    print("\n".join(lines(summary)))


def lines(summary: dict[str, Any]) -> list[str]:
    """What the summary of a run, as plain data, says of the model."""
    predicted, beside = summary.get("predicted"), summary.get("against_model")
    said = [] if predicted is None else _bands(predicted)
    return said + ([] if beside is None else _beside(beside))


def _bands(predicted: dict[str, Any]) -> list[str]:
    said = []
    if predicted["error_share"]:
        said.append(f"step times may be off by {predicted['error_share']:.1%} together, as calibration measured")
    if predicted["extrapolated_share"]:
        beyond = ", ".join(f"{name} up to {value:g}" for name, value in predicted["extrapolated"].items())
        said.append(f"extrapolated: {predicted['extrapolated_share']:.1%} of the steps lie beyond it ({beyond})")
    if predicted.get("unbanded"):
        said.append(f"no bands: {predicted['unbanded']}")
    return said + [
        f"  {name:<26} {band['low']:,.4g} to {band['high']:,.4g}" for name, band in predicted["bands"].items()
    ]


def _beside(model: dict[str, Any]) -> list[str]:
    said = [
        f"beside profile {model['profile']}: {model['steps']} steps took {model['measured_ms']:,.0f} ms, predicted "
        f"{model['predicted_ms']:,.0f} ms ({model['error_share']:+.1%})"
    ]
    parted = model["divergence"]
    said.append(
        "every decision is the same" if parted is None else f"decisions part after {parted['steps_equal']} steps"
    )
    if model["extrapolated_share"]:
        said.append(f"extrapolated: {model['extrapolated_share']:.1%} of the steps")
    for kind in model["kinds"][:_KINDS_AT_MOST]:
        low, high = kind["decoding"]
        said.append(
            f"  {kind['kind']:<18} {low}-{high} decoding  {kind['steps']:>6} steps  {kind['error_share']:+7.1%}  "
            f"{kind['of_error_share']:.0%} of the error"
        )
    figures = model["figures"]
    return said + [
        f"  {name:<26} measured {figures[name]['measured']:,.4g}  predicted {figures[name]['predicted']:,.4g}  "
        f"{figures[name]['error_share']:+.1%}"
        for name in _FIGURES
        if name in figures
    ]
