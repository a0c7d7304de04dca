"""What an engine is built from, and what loading it yields."""

from dataclasses import dataclass

from scheduler_core.types.overlap import Overlap
from scheduler_core.types.time import Ns

DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
ATTENTION = ("auto", "native", "flashinfer", "triton", "gather")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen: greedy at ``temperature`` 0, else drawn from the softmax of logits / temperature.

    A draw is kept to the ``top_k`` best tokens (0: all) and, of those, to the fewest whose probability reaches
    ``top_p``. It depends on the request's seed and the token's position, never on the batch.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One instance of the engine.

    ``model`` is what `references.resolve` takes. ``threads`` are the CPU threads of the forward, None
    for all usable cores but one. ``prefix_block_size`` is the number of prompt tokens behind each id of a request's
    ``prefix_blocks`` (`ArrivalPlan.block_size`), which need not be the KV ``block_size``. ``host_blocks`` are KV blocks
    in host memory, for plans that swap. ``overlap`` says how many steps may be launched before the first is read, and
    whether one may be granted a token that the one before still computes. ``attention`` forces a backend; ``auto``
    takes the fastest that works here. ``decode_graphs`` captures decode steps on CUDA, by bucket of batch sizes.
    """

    model: str = "demo-s"
    device: str = "auto"
    dtype: str = "float32"
    threads: int | None = None
    kv_blocks: int = 512
    host_blocks: int = 0
    block_size: int = 16
    weight_seed: int = 0
    prefix_block_size: int = 16
    attention: str = "auto"
    decode_graphs: bool = True
    sampling: Sampling = Sampling()
    overlap: Overlap = Overlap.NONE


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How long loading and warming up took, the device memory it left in use, and what the figures were made on."""

    load_ns: Ns
    device_bytes: int
    fingerprint: dict[str, str | int | float]
