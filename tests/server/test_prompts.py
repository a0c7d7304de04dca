"""Bodies of requests: what a target's settings put into them."""

import json
from typing import Any

from gpu_runner.server.client.prompts import Manner, PromptWriter
from scheduler_core.spec.sampling import Sampling
from scheduler_core.types.arrival import PlannedRequest


def body(sampling: Sampling, *, seed: int = 5) -> Any:
    written, _said = PromptWriter(Manner("m", sampling=sampling)).body(PlannedRequest(0, 0, 8, 4, 4, seed=seed))
    return json.loads(written)


def test_greedy_needs_neither_seed_nor_limits() -> None:
    fields = body(Sampling())
    assert fields["temperature"] == 0
    assert not {"seed", "top_p", "top_k"} & fields.keys()


def test_draws_carry_the_seed_of_their_request() -> None:
    fields = body(Sampling(temperature=0.7, top_p=0.9), seed=2**63 + 5)
    assert (fields["temperature"], fields["top_p"], fields["seed"]) == (0.7, 0.9, 5)
    assert "top_k" not in fields
    assert body(Sampling(temperature=0.7, top_k=40))["top_k"] == 40
