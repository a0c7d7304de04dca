"""`vllm_v1` beside the scheduler of an installed vLLM, step by step: the same grants, blocks and preemptions.

``make test-vllm-parity`` runs it with the interpreter that HEADWAY_VLLM_PYTHON names.
"""

from collections.abc import Iterator

import pytest

from bench.peers.process import VLLM, Peer, PeerMissingError
from tests.parity.compare import explanation, first_difference, without_blocks
from tests.parity.drives import Ours, Theirs, drive
from tests.parity.scenarios import draw

SCENARIOS = 100
ROOMY = {"kv_blocks": 4000}


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    try:
        peer = Peer("vllm_scheduler.py", VLLM)
    except PeerMissingError as error:
        pytest.skip(f"no vLLM to compare with: {error}")
    with peer:
        yield peer


@pytest.mark.parametrize("seed", range(SCENARIOS))
def test_the_same_decisions_step_by_step(peer: Peer, seed: int) -> None:
    scenario = draw(seed)
    found = first_difference(drive(scenario, Ours(scenario)), drive(scenario, Theirs(peer, scenario)))
    version = peer.greeting["version"]
    assert found is None or explanation(found, scenario.settings, version), (scenario.settings, found)


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_same_decisions_with_a_step_planned_ahead(peer: Peer, seed: int, prefix_cache: bool) -> None:
    """Blocks of a request that ended wait here for the steps in flight, so pools are roomy and ids are not compared."""
    scenario = draw(seed, ahead=True, prefix_cache=prefix_cache, **ROOMY)
    ours, theirs = drive(scenario, Ours(scenario)), drive(scenario, Theirs(peer, scenario))
    assert first_difference(without_blocks(ours), without_blocks(theirs)) is None, scenario.settings
