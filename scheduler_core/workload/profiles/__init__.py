"""Bundled traffic shapes: quantiles of lengths and gaps, computed from public traces; no row of them is here.

`profile_names` lists them, `load_profile` gives one. ``python -m scheduler_core.workload.profiles.derive TRACES``
computes the files again from the traces.
"""

import difflib
import json
from functools import lru_cache
from importlib.resources import files

from scheduler_core.spec.base import Spec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import Arrivals, Length, Lengths, Poisson, QuantileGaps, Quantiles
from scheduler_core.types.errors import InputError, Problem


class TrafficProfile(Spec):
    """A shape of traffic: 101 quantiles (minimum, 1 %, ..., maximum) of each length, and of the gaps where they mean
    something.

    ``gaps_s`` is absent where the trace's times are too coarse to have a shape; arrivals are then Poisson.
    ``rows`` and ``sha256`` are those of the file the quantiles were computed from.
    """

    name: str
    title: str
    source: str
    licence: str
    attribution: str
    derived: str
    rows: int
    sha256: str
    rate_rps: float
    prompt_tokens: Quantiles
    output_tokens: Quantiles
    gaps_s: Quantiles | None = None

    def arrivals(self, rate_rps: float) -> Arrivals:
        """Arrivals of this shape at a rate."""
        if self.gaps_s is None:
            return Arrivals(poisson=Poisson(rate_rps=rate_rps))
        return Arrivals(quantiles=QuantileGaps(gaps=self.gaps_s, rate_rps=rate_rps))

    def lengths(self, scale: float) -> Lengths:
        """Lengths of this shape, multiplied by ``scale``."""
        return Lengths(
            prompt=Length(quantiles=self.prompt_tokens), output=Length(quantiles=self.output_tokens), scale=scale
        )

    def notes(self) -> tuple[str, ...]:
        """What must be said wherever traffic of this shape is shown."""
        gaps = "gaps" if self.gaps_s is not None else "Poisson arrivals"
        return (
            f"synthetic, after the quantiles of {self.title}: lengths drawn independently of each other, {gaps} at the "
            "rate asked for; no row of the trace is replayed",
            f"quantiles computed from: {self.attribution}, {self.licence}",
        )


@lru_cache(maxsize=1)
def profile_names() -> tuple[str, ...]:
    """Names of the bundled shapes."""
    folder = files(__name__)
    return tuple(sorted(item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json")))


@lru_cache(maxsize=16)
def load_profile(name: str) -> TrafficProfile:
    """The bundled shape called ``name``; `InputError` suggests the nearest right name."""
    if name not in profile_names():
        near = difflib.get_close_matches(name, profile_names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(profile_names())}"
        raise InputError([Problem("profile", f"there is no profile {name!r}; {hint}")])
    return parse(TrafficProfile, json.loads(files(__name__).joinpath(f"{name}.json").read_text("utf-8")))
