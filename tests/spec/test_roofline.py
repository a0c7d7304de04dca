"""Profiles from public specifications: counted weights, terms worked out by hand, and what is refused."""

import pytest

from scheduler_core.sim.cost import StepCost
from scheduler_core.spec.models import MODELS
from scheduler_core.spec.profiles import choose_profile
from scheduler_core.spec.roofline import names, roofline_profile
from scheduler_core.types.errors import InputError
from scheduler_core.types.shape import StepShape


def cost(name: str) -> StepCost:
    return StepCost(roofline_profile(name, where="profile"))


def device_ns(name: str, shape: StepShape) -> float:
    return cost(name).parts(shape, 0).device_ns


@pytest.mark.parametrize(
    ("model", "billions"),
    [("llama-3.1-8b", 8.03), ("llama-3.1-70b", 70.6), ("llama-3.1-405b", 406), ("qwen2.5-7b", 7.62),
     ("qwen2.5-32b", 32.8), ("qwen2.5-72b", 72.7), ("qwen3-8b", 8.19), ("qwen3-32b", 32.8), ("mistral-7b", 7.25),
     ("mixtral-8x7b", 46.7), ("mixtral-8x22b", 141), ("qwen3-30b-a3b", 30.5), ("qwen3-235b-a22b", 235),
     ("deepseek-v3", 671)],
)  # fmt: skip
def test_shapes_have_as_many_weights_as_their_makers_say(model: str, billions: float) -> None:
    assert MODELS[model].parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_active_weights_of_experts() -> None:
    """The makers say 12.9, 3.3, 22 and 37 billion, counting embedding or head as they like."""
    for model, billions in (
        ("mixtral-8x7b", 12.9),
        ("qwen3-30b-a3b", 3.3),
        ("qwen3-235b-a22b", 22),
        ("deepseek-v3", 37),
    ):
        shape = MODELS[model]
        assert (shape.active_parameters + 2 * shape.head_parameters) / 1e9 == pytest.approx(billions, rel=0.03)


def test_latent_attention_keeps_576_numbers_a_layer() -> None:
    """Bytes of a token: DeepSeek-V3 61 x (512 + 64) x 2 = 70,272; Llama 3.1 8B 32 x 2 x 8 x 128 x 2 = 131,072."""
    kept = {name: model.layers * model.attention.kv_values * 2 for name, model in MODELS.items()}
    assert kept["deepseek-v3"] == 70_272
    assert kept["llama-3.1-8b"] == 131_072


def test_terms_of_a_dense_model() -> None:
    """Llama 3.1 8B on an A100 at 80 % of 2,039 GB/s and 70 % of 312 TFLOPS.

    Weights read once: 32 x (41,943,040 + 176,160,768) + 525,336,576 = 7,504,658,432, two bytes each, at 1,631.2 bytes
    a ns: 9.2014 ms. A kept token: 131,072 bytes: 80.35 ns. A pair: 32 layers x 32 heads x 4 x 128 operations at 218,400
    a ns: 2.4 ns. Layers cost 32 x 10 us beside that.
    """
    found = roofline_profile("llama-3.1-8b@a100", where="profile")
    assert found.cost.batch_knots[0][1] == pytest.approx(9_201_400, rel=1e-4)
    assert found.cost.context_token_ns == pytest.approx(80.35, rel=1e-3)
    assert found.cost.prefill_pair_ns == pytest.approx(2.4006, rel=1e-3)
    assert found.cost.base_ns == 320_000
    assert found.kind == "public specification"


def test_decode_is_bound_by_bandwidth_and_prefill_by_compute() -> None:
    """M15. Doubling a decode batch hardly matters; doubling a long prompt doubles its products.

    2 x 6,979,321,856 operations x 4,096 tokens at 218,400 a ns are 261.8 ms.
    """
    small, large = (device_ns("llama-3.1-8b@a100", StepShape(0, n, 0, 0)) for n in (8, 16))
    assert large / small < 1.02
    prompt = device_ns("llama-3.1-8b@a100", StepShape(4096, 0, 0, 0))
    assert prompt == pytest.approx(261_800_000 + 320_000, rel=0.001)
    assert device_ns("llama-3.1-8b@a100", StepShape(8192, 0, 0, 0)) / prompt == pytest.approx(2, rel=0.002)


def test_few_tokens_touch_few_experts() -> None:
    """Mixtral uses 2 of 8 experts: one token touches 1/4 of them, two 1 - (3/4)^2 = 7/16, many all."""
    model = MODELS["mixtral-8x7b"]
    assert [model.touched_share(n) for n in (1, 2, 400)] == [0.25, 0.4375, pytest.approx(1)]
    one, many = (device_ns("mixtral-8x7b@h200", StepShape(0, n, 0, 0)) for n in (1, 64))
    read = model.dense_parameters + model.head_parameters
    weights = (read + model.expert_parameters) / (read + 0.25 * model.expert_parameters)
    assert many / one == pytest.approx(weights, rel=0.05)


def test_more_devices_are_faster_and_hold_more_but_not_in_proportion() -> None:
    one, four = (roofline_profile(f"llama-3.1-70b@h200{n}", where="profile") for n in ("x2", "x4"))
    assert four.kv_blocks > 2 * one.kv_blocks
    shape = StepShape(0, 32, 32_000, 0)
    assert 1 < StepCost(one).step_ns(shape, 0) / StepCost(four).step_ns(shape, 0) < 2


def test_a_latent_cache_is_not_split_over_devices() -> None:
    """Each device reads the whole vector, so a kept token costs what it costs one: 70,272 / 3,840 = 18.3 ns."""
    eight, sixteen = (roofline_profile(f"deepseek-v3@h200x{n}", where="profile") for n in (8, 16))
    assert eight.cost.context_token_ns == sixteen.cost.context_token_ns == pytest.approx(18.3, rel=0.001)
    assert sixteen.kv_blocks < 2 * eight.kv_blocks


def test_every_listed_name_can_be_played() -> None:
    for name in names():
        found = choose_profile(name, (), where="profile")
        assert found.name == name
        assert found.kv_blocks * 16 >= found.model_length


@pytest.mark.parametrize(
    ("name", "says"),
    [("llama-3.1-8b@h10", "did you mean 'h100'"), ("lama-3.1-8b@h100", "did you mean 'llama-3.1-8b'"),
     ("llama-3.1-70b@h100", "llama-3.1-70b@h100x2"), ("llama-3.1-8b@h100x7", "cannot be spread evenly"),
     ("llama@h100@x", "not of the form"), ("nothing", "headway profiles lists them")],
)  # fmt: skip
def test_what_cannot_be_had_is_told(name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        choose_profile(name, (), where="profile")
