"""Models cut over devices: what fits, what is told, worked out by hand; and what cannot be cut."""

from typing import Any

import pytest

from scheduler_core.spec.parallel import Parallel
from scheduler_core.spec.parse import parse
from scheduler_core.spec.profiles import choose_profile, reference_profiles
from scheduler_core.spec.roofline import roofline_profile
from scheduler_core.spec.speculative import Speculative
from scheduler_core.spec.target import Profile, TargetSpec
from scheduler_core.types.errors import InputError


def cut(name: str, **parallel: Any) -> Profile:
    return roofline_profile(name, where="target.modelled.profile", parallel=Parallel(**parallel))


def test_the_section_says_what_the_name_says() -> None:
    """Four devices in tensor parallel are ``x4``, whatever they are written as."""
    assert cut("llama-3.1-70b@h100", tensor=4) == roofline_profile("llama-3.1-70b@h100x4", where="p").model_copy(
        update={"name": "llama-3.1-70b@h100"}
    )


def test_one_device_is_none_of_this() -> None:
    assert cut("llama-3.1-8b@h100") == roofline_profile("llama-3.1-8b@h100", where="p")
    assert cut("llama-3.1-8b@h100").parallel is None


def test_all_reduces_move_twice_the_activations_over_the_ring() -> None:
    """Llama 3.1 8B, 32 layers, 8,192 bytes a token: 64 all-reduces of 10 us, and 64 x 2 x 3/4 x 8,192 / 450 ns."""
    found = cut("llama-3.1-8b@h100", tensor=4).parallel
    assert found is not None
    assert (found.collectives, found.collective_ns) == (64, 640_000)
    assert found.collective_token_ns == pytest.approx(64 * 1.5 * 8192 / 450)


def test_experts_replace_the_second_all_reduce_by_two_exchanges() -> None:
    """Mixtral 8x7B over 8: 32 all-reduces, 64 exchanges of 10 us; 7/8 of choices go 4,096 x 2 bytes there and back.

    An expert's weights, 3 x 4,096 x 14,336 in each of 32 layers, are 5.64e9: at 692.58e3 operations a ns 16.28 us a
    choice, at 2,680 bytes a ns 4.207 ms to read.
    """
    found = cut("mixtral-8x7b@h100", tensor=8, expert=8).parallel
    assert found is not None
    assert found.experts is not None
    assert found.collectives == 32 + 64
    assert found.experts.dispatch_ns == 640_000
    assert found.experts.dispatch_token_ns == pytest.approx(64 * 7 / 8 * 8192 / 450)
    assert found.experts.token_ns == pytest.approx(2 * 5_637_144_576 / 692_580)
    assert found.experts.touch_ns == pytest.approx(5_637_144_576 * 2 / 2680)


def test_kv_follows_from_what_weights_leave() -> None:
    """Llama 3.1 8B on H100 (72 GB usable). Two stages: 16 layers and one table each, 3,489,660,928 + 525,336,576
    weights of two bytes leave 63,970,005,008 bytes; a block of 16 tokens takes 16 x 16 x 4,096 bytes there.

    In tensor parallel weights and KV are halved alike, so as many blocks fit as on one device with twice the room.
    """
    assert cut("llama-3.1-8b@h100", pipeline=2).kv_blocks == 63_970_005_008 // (16 * 16 * 4096)
    halves = (72_000_000_000 - 8_030_000_128) // (32 * 16 * 2048)
    assert cut("llama-3.1-8b@h100", tensor=2).kv_blocks == pytest.approx(halves, abs=1)


def test_each_replica_has_its_own_kv_and_shares_the_experts() -> None:
    one, two = (cut("qwen3-30b-a3b@h100", data=data, expert=data) for data in (1, 2))
    assert two.devices == 2
    assert two.kv_blocks > 2 * one.kv_blocks  # half the experts each, all the attention


def test_a_pipeline_hands_on_activations() -> None:
    found = cut("llama-3.1-8b@h100", pipeline=4, stage_gb_per_s=25).parallel
    assert found is not None
    assert found.stage_token_ns == pytest.approx(8192 / 25)
    assert found.collectives == 0


@pytest.mark.parametrize(
    ("name", "parallel", "field", "says"),
    [
        ("llama-3.1-8b@h100", {"tensor": 5}, "tensor", "must divide the 32 heads"),
        ("llama-3.1-8b@h100", {"pipeline": 3}, "pipeline", "must divide the 32 layers"),
        ("llama-3.1-8b@h100", {"micro_batches": 2}, "micro_batches", "without a pipeline"),
        ("llama-3.1-8b@h100", {"data": 2}, "data", "several instances"),
        ("llama-3.1-8b@h100", {"expert": 2}, "expert", "needs a model with experts"),
        ("llama-3.1-8b@h100", {"capacity_factor": 2.0}, "capacity_factor", "needs a model with experts"),
        ("mixtral-8x7b@h100", {"tensor": 4, "expert": 3}, "expert", "must divide the 8 experts"),
        ("mixtral-8x7b@h100", {"tensor": 4, "data": 2}, "expert", "multiple of data"),
        ("mixtral-8x7b@h100", {"tensor": 4, "expert_skew": 1.0}, "expert_skew", "says nothing"),
    ],
)
def test_what_cannot_be_cut_is_told_at_its_field(name: str, parallel: Any, field: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as told:
        cut(name, **parallel)
    assert [problem.where for problem in told.value.problems] == [f"target.modelled.parallel.{field}"]


def test_devices_are_said_once_and_measured_profiles_are_as_they_are() -> None:
    where = "target.modelled.profile"
    with pytest.raises(InputError, match="leave one out") as told:
        choose_profile("llama-3.1-8b@h100x2", (), where=where, parallel=Parallel(tensor=2))
    assert told.value.problems[0].where == "target.modelled.parallel"
    with pytest.raises(InputError, match="MODEL@DEVICE"):
        choose_profile("auto", reference_profiles(), where=where, parallel=Parallel(tensor=2))


def test_groups_may_be_spread_differently() -> None:
    """One names nothing and is as the target; one other devices; one another profile on one device."""
    target = parse(
        TargetSpec,
        {
            "modelled": {
                "profile": "llama-3.1-8b@h100",
                "parallel": {"tensor": 2},
                "speculative": {"acceptance": 0.5},
                "topology": {
                    "groups": {
                        "as": {},
                        "wide": {"parallel": {"tensor": 4}},
                        "small": {"profile": "llama-3.1-8b@l40s"},
                        "odd": {"parallel": {"tensor": 3}},
                    }
                },
            }
        },
    )
    assert target.modelled is not None

    refused = []

    def choose(name: str, where: str, parallel: Parallel | None) -> Profile:
        try:
            return choose_profile(name, (), where=where, parallel=parallel)
        except InputError as error:
            refused.append(error.problems[0].where)
            return reference_profiles()[0]

    own, groups = target.modelled.profiles(choose)
    assert own.devices == 2
    assert {name: found.devices for name, found in groups.items()} == {"wide": 4, "small": 1, "odd": 1}
    assert refused == ["target.modelled.topology.groups.odd.parallel.tensor"]
    assert {found.speculative for found in (own, *groups.values())} == {Speculative(acceptance=0.5)}
