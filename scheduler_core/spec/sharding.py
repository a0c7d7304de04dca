"""A model cut over devices: whether that can be done, what fits on each, and what they have to tell each other.

* memory: a device holds its part of the layers and experts, and of a table (embedding, output head) where its stage has
  one; the fullest stage counts. KV is split by stage and, up to the number of KV heads, by tensor parallelism; each
  attention replica has its own
* all-reduce, twice a layer: a ring moves 2 (t - 1) / t of the activations over the slowest link (Patarasuk and Yuan,
  "Bandwidth optimal all-reduce algorithms", JPDC 2009)
* experts in e places: of the choices that fall to a place, (e - 1) / e come from elsewhere, and go back
"""

from scheduler_core.spec.devices import Device
from scheduler_core.spec.models import Model
from scheduler_core.spec.parallel import ExpertTime, Parallel, ParallelTime
from scheduler_core.types.errors import Problem
from scheduler_core.types.time import NS_PER_US

MEMORY_SHARE = 0.90
ACTIVATION_BYTES = 2
BLOCK_SIZE = 16


def problems(model: Model, parallel: Parallel, where: str) -> list[Problem]:
    """Why ``model`` cannot be cut like this; empty when it can. ``where`` is the path of ``parallel``."""
    found = []
    heads, experts = model.attention.heads, model.experts

    def wrong(name: str, message: str) -> None:
        found.append(Problem(f"{where}.{name}", message))

    if heads % parallel.tensor:
        wrong("tensor", f"must divide the {heads} heads of {model.name}, is {parallel.tensor}")
    if model.layers % parallel.pipeline:
        wrong("pipeline", f"must divide the {model.layers} layers of {model.name}, is {parallel.pipeline}")
    if parallel.micro_batches is not None and parallel.pipeline == 1:
        wrong("micro_batches", "says nothing without a pipeline; set pipeline, or leave it out")
    if experts is None:
        for name, unset in (("data", 1), ("expert", 1), ("expert_skew", 0), ("capacity_factor", None)):
            if getattr(parallel, name) != unset:
                wrong(name, f"needs a model with experts, which {model.name} is not; for replicas of a model without "
                      "use several instances (topology)" if name == "data" else
                      f"needs a model with experts, which {model.name} is not")  # fmt: skip
        return found
    together = parallel.tensor * parallel.data
    if experts.count % parallel.expert or together % parallel.expert:
        wrong("expert", f"must divide the {experts.count} experts of {model.name} and the {together} devices of tensor "
              f"x data, is {parallel.expert}")  # fmt: skip
    elif parallel.expert % parallel.data:
        wrong("expert", f"must be a multiple of data ({parallel.data}), whose replicas share the experts; is "
              f"{parallel.expert}")  # fmt: skip
    if parallel.expert_skew and parallel.expert == 1 and parallel.capacity_factor is None:
        wrong("expert_skew", "says nothing while all experts are in one place (expert: 1) and none is full")
    return found


def draws_experts(parallel: Parallel) -> bool:
    """Whether it matters which experts the tokens of a step choose, beyond how many of them are touched."""
    return parallel.expert > 1 or parallel.capacity_factor is not None


def kv_shards(model: Model, tensor: int) -> int:
    """Parts into which ``tensor`` devices split the KV cache: by KV head; a latent vector is kept whole on each."""
    return 1 if model.attention.kv_rank else min(tensor, model.attention.kv_heads)


def weight_bytes(model: Model, parallel: Parallel) -> float:
    """Weights on a device of the fullest stage."""
    layers = model.dense_parameters / parallel.tensor + model.expert_parameters / (parallel.tensor * parallel.data)
    tables = model.head_parameters * (1 if model.tied or parallel.pipeline > 1 else 2)
    return (layers / parallel.pipeline + tables / parallel.tensor) * model.weight_bits / 8


def kv_blocks(model: Model, device: Device, parallel: Parallel) -> int:
    """KV blocks of `BLOCK_SIZE` tokens that fit beside the weights; 0 when these do not."""
    room = device.memory_gb * 1e9 * MEMORY_SHARE - weight_bytes(model, parallel)
    kept = model.attention.kv_values * ACTIVATION_BYTES * BLOCK_SIZE / kv_shards(model, parallel.tensor)
    return parallel.data * max(0, int(room // (model.layers / parallel.pipeline * kept)))


def parallel_time(model: Model, device: Device, parallel: Parallel, experts: ExpertTime | None) -> ParallelTime:
    """What the devices tell each other in a step."""
    tensor, latency = parallel.tensor, parallel.link_latency_us * NS_PER_US
    link = parallel.link_gb_per_s or device.link_gb_per_s
    reductions = 0 if tensor == 1 else 2 * model.layers
    exchanges = 0
    if parallel.expert > 1:
        exchanges = 2 * expert_layers(model)  # dispatch and combine, in place of an all-reduce
        reductions -= 0 if tensor == 1 else exchanges // 2
    row = model.hidden * ACTIVATION_BYTES
    return ParallelTime(
        tensor=tensor,
        pipeline=parallel.pipeline,
        data=parallel.data,
        expert=parallel.expert,
        micro_batches=parallel.micro_batches,
        collectives=reductions + exchanges,
        collective_ns=reductions * latency,
        collective_token_ns=reductions * 2 * (tensor - 1) / tensor * row / link,
        stage_ns=latency if parallel.pipeline > 1 else 0.0,
        stage_token_ns=row / (parallel.stage_gb_per_s or link) if parallel.pipeline > 1 else 0.0,
        experts=experts,
    )


def expert_time(model: Model, device: Device, parallel: Parallel, rates: tuple[float, float]) -> ExpertTime | None:
    """The routed experts, where it matters who chooses which; ``rates``: operations and bytes per ns of a device."""
    experts = model.experts
    if experts is None or not draws_experts(parallel):
        return None
    layers, places = expert_layers(model), parallel.expert
    flops, bandwidth = rates
    beside = parallel.tensor * parallel.data // places
    weights = layers * 3 * model.hidden * experts.width
    link = (parallel.link_gb_per_s or device.link_gb_per_s) * beside
    moved = 2 * layers * (places - 1) / places * model.hidden * ACTIVATION_BYTES
    return ExpertTime(
        count=experts.count,
        used=experts.used,
        groups=places,
        token_ns=2 * weights / (flops * beside),
        touch_ns=weights * model.weight_bits / 8 / (bandwidth * beside),
        dispatch_ns=2 * layers * parallel.link_latency_us * NS_PER_US if places > 1 else 0.0,
        dispatch_token_ns=moved / link,
        skew=parallel.expert_skew,
        capacity_factor=parallel.capacity_factor,
        seed=parallel.router_seed,
    )


def expert_layers(model: Model) -> int:
    """Layers that have routed experts."""
    return 0 if model.experts is None else model.layers - model.experts.dense_layers
