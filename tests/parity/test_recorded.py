"""`vllm_v1` against recorded drives of vLLM's scheduler: the same grants, blocks and preemptions in every step."""

from collections.abc import Callable

import pytest

from tests.parity.compare import first_difference
from tests.parity.drives import Ours, drive
from tests.parity.recorded import FOLDER, SCENARIOS, Recording


def _preempts(recording: Recording) -> bool:
    return sum(len(step.preempted) for step in recording.steps) > 1


def _cuts(recording: Recording) -> bool:
    prompts = {offer.id: offer.prompt for offer in recording.scenario.offers}
    return any(start + tokens < prompts[number] for step in recording.steps for number, start, tokens, _ in step.grants)


def _hits(recording: Recording) -> bool:
    """A request begins behind position 0 with a whole table: its beginning was found in the cache."""
    size = recording.scenario.settings.block_size
    rows = (grant for step in recording.steps for grant in step.grants)
    return any(start >= size and len(blocks) * size >= start + tokens for _, start, tokens, blocks in rows)


def _stands_aside(recording: Recording) -> bool:
    """Some wait although a slot and enough budget are left, so memory must have held them."""
    settings, waiting = recording.scenario.settings, {offer.id for offer in recording.scenario.offers}
    for step in recording.steps:
        waiting -= {number for number, *_ in step.grants}
        if waiting and not step.preempted and 0 < len(step.grants) < settings.size:
            return True
    return False


SHOWN: dict[str, Callable[[Recording], bool]] = {
    "chunked-prompts": _cuts,
    "whole-prompts": lambda recording: not _cuts(recording),
    "long-prefill-cap": _cuts,
    "preemption": _preempts,
    "prefix-cache": lambda recording: _hits(recording) and _preempts(recording),
    "priorities": _preempts,
    "self-preemption": _preempts,
    "watermark": _stands_aside,
    "blocks-of-one-token": _hits,
    "large-blocks": _hits,
    "aborts": lambda recording: any(offer.abort >= 0 for offer in recording.scenario.offers),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_decisions_as_recorded(name: str) -> None:
    recording = Recording.read(FOLDER / f"{name}.jsonl")
    assert SHOWN[name](recording), "it does not show what its name says"
    assert first_difference(drive(recording.scenario, Ours(recording.scenario)), recording.steps) is None


def test_every_recording_is_played() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(SCENARIOS)
