"""What a step computes, reduced to the numbers its duration depends on.

The engine's calibration fits `spec.target.Affine` to these, and the modelled target evaluates it on them, so both must
count alike: here.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from scheduler_core.types.plan import Grant, Phase, StepPlan
from scheduler_core.types.records import Step

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_DECODE = Phase.DECODE


class StepShape(NamedTuple):
    """Inputs of a step's cost.

    ``context_tokens`` are the KV positions read by decoding requests, the new one included; ``prefill_pairs`` the
    (query, key) pairs of causal prefill and recompute attention. ``joined`` counts the requests whose first grant since
    they waited is in the step. ``drafts`` are tokens drafted for decoding requests and checked beside their own; their
    attention counts as pairs, too. The longest draft took ``draft_passes`` passes of the draft model.
    """

    prefill_tokens: int
    decode_requests: int
    context_tokens: int
    prefill_pairs: int
    joined: int = 0
    drafts: int = 0
    draft_passes: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that the target model computes."""
        return self.prefill_tokens + self.decode_requests + self.drafts


def joins(grant: Grant) -> bool:
    """Whether ``grant`` is its request's first since it waited: nothing before it was computed by an earlier grant."""
    return grant.start == grant.hit_tokens


def causal_pairs(start: int, length: int) -> int:
    """(query, key) pairs when positions ``start .. start + length - 1`` each see all positions up to themselves."""
    return length * start + length * (length + 1) // 2


def shape_of_step(step: Step) -> StepShape:
    """The shape of a recorded step, as `shape_of` gives it for its plan."""
    shape = shape_of_rows(step.grants)
    if not step.drafts:
        return shape
    ends = {row[0]: row[2] + row[3] for row in step.grants}
    return _with_drafts(shape, [(ends[request], drafted) for request, drafted, _accepted in step.drafts])


def shape_of_rows(
    grants: Iterable[tuple[int, int, int, int, str, int, int]], decode: int = 0, context: int = 0
) -> StepShape:
    """The shape of recorded ``grants`` beside ``decode`` requests that decode and read ``context`` positions."""
    prefill = pairs = joined = 0
    for _request, _epoch, start, length, phase, _sampled, hit_tokens in grants:
        joined += start == hit_tokens
        if phase == _DECODE:
            decode += 1
            context += start + length
        else:
            prefill += length
            pairs += causal_pairs(start, length)
    return StepShape(prefill, decode, context, pairs, joined)


def shape_of(plan: StepPlan) -> StepShape:
    """The shape of a plan. O(grants)."""
    return shape_of_grants(plan.grants)


def shape_of_grants(grants: Collection[Grant], decode: int = 0, context: int = 0) -> StepShape:
    """The shape of ``grants`` beside ``decode`` requests that decode and read ``context`` positions. O(grants)."""
    prefill = pairs = joined = 0
    for grant in grants:
        joined += joins(grant)
        if grant.phase is _DECODE:
            decode += 1
            context += grant.start + grant.length
        else:
            prefill += grant.length
            pairs += causal_pairs(grant.start, grant.length)
    shape = StepShape(prefill, decode, context, pairs, joined)
    drafts = [(grant.start + grant.length, grant.drafts) for grant in grants if grant.drafts]
    return _with_drafts(shape, drafts) if drafts else shape


def _with_drafts(shape: StepShape, drafts: Sequence[tuple[int, int]]) -> StepShape:
    """``shape`` with drafts given as (position after the last token, tokens)."""
    pairs = sum(causal_pairs(end - tokens, tokens) for end, tokens in drafts)
    return shape._replace(
        prefill_pairs=shape.prefill_pairs + pairs,
        drafts=sum(tokens for _, tokens in drafts),
        draft_passes=max(tokens for _, tokens in drafts),
    )
