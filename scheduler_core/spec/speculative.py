"""Speculative decoding on a modelled target: what the draft is worth, and what it takes."""

from itertools import accumulate, pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from scheduler_core.spec.base import Share, Spec

MOST_DRAFT_TOKENS = 32

_Count = Annotated[float, Field(ge=0)]


class Speculative(Spec):
    """How often the target model would have said what a draft proposes, and what drafting takes.

    Of a draft, the tokens before the first one that the model disagrees with are accepted. Which are depends on the
    request's seed and the token's position, never on the batch. How many tokens are drafted is the policy's
    (``execution.draft_tokens``).
    """

    acceptance: Share | None = Field(
        None,
        description="Chance that a draft token is accepted, given that all before it were: the same at every position, "
        "so accepted lengths are geometric.",
    )
    per_position: tuple[Share, ...] | None = Field(
        None,
        min_length=1,
        max_length=MOST_DRAFT_TOKENS,
        description="Share of drafts whose first, second, ... token was accepted, as vLLM logs it; never rises. "
        "0.8, 0.6, 0.4 for example.",
    )
    histogram: tuple[_Count, ...] | None = Field(
        None,
        min_length=2,
        max_length=MOST_DRAFT_TOKENS + 1,
        description="How many drafts had no, one, two, ... tokens accepted, as counted on a server, such as 20, 30, "
        "25, 25; in any unit.",
    )
    draft_ratio: float = Field(
        0.0,
        ge=0,
        le=1,
        description="What the draft model takes for one token of every request that decodes, as a share of the time "
        "that the target model takes for one (c of Leviathan et al. 2023). 0: look-up in the prompt, which takes none.",
    )

    @model_validator(mode="after")
    def _one_distribution(self) -> Self:
        given = [name for name in ("acceptance", "per_position", "histogram") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of acceptance, per_position, histogram; got {', '.join(given) or 'none'}"
            )
        if self.per_position and any(later > earlier for earlier, later in pairwise(self.per_position)):
            raise ValueError("per_position: rises; a token is accepted only where all before it were")
        if self.histogram and not sum(self.histogram):
            raise ValueError("histogram: counts no draft at all")
        return self

    @property
    def positions(self) -> int:
        """Draft positions of which the distribution says something."""
        if self.acceptance is not None:
            return MOST_DRAFT_TOKENS
        return len(self.per_position or ()) or len(self.histogram or ()) - 1

    def reached(self) -> tuple[float, ...]:
        """Share of drafts of which at least the first ``n`` tokens are accepted, by ``n`` from 1 to `positions`."""
        if self.acceptance is not None:
            return tuple(self.acceptance**place for place in range(1, MOST_DRAFT_TOKENS + 1))
        if self.per_position is not None:
            return self.per_position
        counts = self.histogram or ()
        beyond = tuple(accumulate(reversed(counts)))[::-1]  # drafts with at least so many tokens accepted
        return tuple(count / beyond[0] for count in beyond[1:])
