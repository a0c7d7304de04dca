"""Compute the bundled profiles again from the public traces: ``python -m scheduler_core.workload.profiles.derive DIR``.

``DIR`` holds the trace files under the paths of `SOURCES`. Quantiles are exact (linear between order statistics, in
rational arithmetic) and written with at most four decimals, so the files are the same from any machine.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from scheduler_core.spec.workload import Trace, TraceFormat
from scheduler_core.workload.traces.data import TraceData
from scheduler_core.workload.traces.reader import read_trace

POINTS = 101


@dataclass(frozen=True, slots=True)
class ProfileSource:
    """Where a profile's figures come from; ``gaps`` says whether the file's times are fine enough to have a shape."""

    path: str
    format: TraceFormat
    title: str
    source: str
    licence: str
    attribution: str
    rows: str
    gaps: bool


_CC_BY = "CC-BY 4.0 (https://creativecommons.org/licenses/by/4.0/)"
_AZURE = "Azure Public Dataset, Microsoft (Splitwise, ISCA 2024)"
_AZURE_URL = "https://github.com/Azure/AzurePublicDataset"

SOURCES = {
    "azure-2023-conv": ProfileSource(
        "azure2023/conv_rows_00001-08000.csv",
        "azure-2023",
        "Azure's 2023 conversation trace",
        _AZURE_URL,
        _CC_BY,
        _AZURE,
        "the first 8,000 rows",
        gaps=True,
    ),
    "azure-2023-code": ProfileSource(
        "azure2023/code_rows_0001-4000.csv",
        "azure-2023",
        "Azure's 2023 code trace",
        _AZURE_URL,
        _CC_BY,
        _AZURE,
        "the first 4,000 rows",
        gaps=True,
    ),
    "mooncake-conversation": ProfileSource(
        "mooncake/conversation_lines_00001-03000.jsonl",
        "mooncake",
        "Mooncake's conversation trace",
        "https://github.com/kvcache-ai/Mooncake",
        "Apache-2.0 (https://www.apache.org/licenses/LICENSE-2.0)",
        "Mooncake (FAST 2025), kvcache-ai",
        "the first 3,000 rows (their times lie on a grid of 3 s, so gaps are left out)",
        gaps=False,
    ),
    "burstgpt": ProfileSource(
        "burstgpt/burstgpt_1_rows_001-400.csv",
        "burstgpt",
        "BurstGPT",
        "https://github.com/HPMLL/BurstGPT",
        _CC_BY,
        "BurstGPT (KDD 2025), HPMLL",
        "the first 400 rows without the 17 failed calls",
        gaps=True,
    ),
}


def derive(name: str, folder: Path) -> dict[str, object]:
    """The profile ``name`` as plain data, computed from its trace file under ``folder``."""
    source = SOURCES[name]
    data = read_trace(folder / source.path, Trace(file=source.path, format=source.format))
    profile: dict[str, object] = {
        "name": name,
        "title": source.title,
        "source": source.source,
        "licence": source.licence,
        "attribution": source.attribution,
        "derived": f"{POINTS} quantiles, computed by Headway from {source.rows}",
        "rows": len(data),
        "sha256": data.sha256,
        "rate_rps": _plain(Fraction((len(data) - 1) * 10**9, data.span_ns)),
        "prompt_tokens": {"values": quantiles(data.prompts)},
        "output_tokens": {"values": quantiles(data.outputs)},
    }
    if source.gaps:
        profile["gaps_s"] = {"values": quantiles(_gaps_s(data))}
    return profile


def quantiles(values: Sequence[int | Fraction]) -> list[float]:
    """`POINTS` equally spaced quantiles, linear between order statistics."""
    ordered = sorted(values)
    found = []
    for point in range(POINTS):
        place, part = divmod(point * (len(ordered) - 1), POINTS - 1)
        above = ordered[min(place + 1, len(ordered) - 1)]
        found.append(_plain(ordered[place] + (above - ordered[place]) * Fraction(part, POINTS - 1)))
    return found


def render(profile: dict[str, object]) -> str:
    """The text of a profile file."""
    return json.dumps(profile, indent=1, ensure_ascii=True) + "\n"


def _gaps_s(data: TraceData) -> list[Fraction]:
    return [Fraction(after - before, 10**9) for before, after in pairwise(data.arrivals_ns)]


def _plain(value: int | Fraction) -> float | int:
    """Four decimals, and no decimal point where there is nothing behind it."""
    rounded = round(Fraction(value), 4)
    return rounded.numerator if rounded.denominator == 1 else float(rounded)


def main(arguments: Sequence[str]) -> int:
    """Write every profile next to this module."""
    if len(arguments) != 1:
        print("usage: python -m scheduler_core.workload.profiles.derive FOLDER_OF_TRACES", file=sys.stderr)
        return 2
    for name in SOURCES:
        target = Path(__file__).with_name(f"{name}.json")
        target.write_text(render(derive(name, Path(arguments[0]))), encoding="utf-8")
        print(target)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
