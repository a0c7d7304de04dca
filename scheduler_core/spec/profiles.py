"""Which profile a modelled target runs on, and the bundled reference ones, so that it works before any calibration.

Reference profiles are orders of magnitude with a wide stated error, not measurements of the reader's machine, and say
so in ``measured_on``; a calibration made here is always preferred.
"""

from collections.abc import Iterable
from itertools import chain

from scheduler_core.spec.parallel import Parallel
from scheduler_core.spec.roofline import parallel_where, roofline_profile
from scheduler_core.spec.target import Affine, HostLink, Profile, TorchTarget
from scheduler_core.types.errors import InputError, Problem

# Fitted to 697 engine steps of the built-in shape by CPU time of one thread, on a shared AVX2 machine; steps left out
# of the fit were predicted to 7 %. The stated errors are wider, because the reader's machine is another one.
CPU_SMALL = Profile(
    name="reference-cpu-demo-s",
    model="demo-s",
    device="one CPU core (reference figures)",
    dtype="float32",
    kind="reference",
    cost=Affine(
        base_ns=5_500_000,
        prefill_token_ns=168_000,
        decode_request_ns=270_000,
        context_token_ns=870,
        prefill_pair_ns=145,
    ),
    # KV of demo-s: 2 x 6 layers x 288 x 4 bytes a token; copies of 1 to 256 blocks within main memory, measured there.
    link=HostLink(token_bytes=13_824, bytes_per_s=3e9, latency_ns=20_000),
    residual_share=0.08,
    drift_share=0.05,
    held_out_error_share=0.25,
    domain={"prefill_tokens": 1024, "decode_requests": 96, "context_tokens": 24_960, "prefill_pairs": 524_800},
    steps_measured=0,
    measured_on={
        "note": "reference figures, not measured on this machine; calibrate to replace them",
        "cpu": "AMD EPYC, AVX2, one thread, 697 steps by CPU time",
        "torch": "2.13.0+cpu",
        "attention": "native",
        "block_size": 16,
    },
)


def reference_profiles() -> tuple[Profile, ...]:
    """All bundled profiles, best known first."""
    return (CPU_SMALL,)


def profile_of(target: TorchTarget, measured: Iterable[Profile]) -> Profile | None:
    """The first of ``measured`` that describes ``target``: same model, number format, threads and kind of device."""
    return next((profile for profile in measured if _describes(profile, target)), None)


def _describes(profile: Profile, target: TorchTarget) -> bool:
    if (profile.model, profile.dtype) != (target.model, target.dtype):
        return False
    if target.device != "auto" and (profile.device == "cpu") != (target.device == "cpu"):
        return False
    return target.threads is None or target.threads == profile.measured_on.get("threads")


def choose_profile(name: str, measured: Iterable[Profile], *, where: str, parallel: Parallel | None = None) -> Profile:
    """The profile called ``name``; for ``auto`` the first one; for ``MODEL@DEVICE`` that of `spec.roofline`.

    ``measured`` holds the calibrations at hand, preferred first; they come before the reference profiles. ``parallel``
    spreads one of public specifications over devices; a measured one is as it was measured.

    Raises:
        InputError: there is none, said at the field ``where``; the message lists those there are.
    """
    known: dict[str, None] = {}
    for profile in chain(measured, reference_profiles()):
        known[profile.name] = None
        if name in ("auto", profile.name):
            if parallel is not None:
                message = (
                    f"profile {profile.name!r} was measured as it is; only one of public specifications can be spread "
                    "over devices: name it MODEL@DEVICE, such as mixtral-8x7b@h100"
                )
                raise InputError([Problem(parallel_where(where), message)])
            return profile
    if "@" in name:
        return roofline_profile(name, where=where, parallel=parallel)
    message = (
        f"there is no profile {name!r}; known here: {', '.join(known)}. "
        "Make one with headway calibrate, or on the page of workers and profiles; "
        "or name a model and a device, such as llama-3.1-8b@h100 (headway profiles lists them)"
    )
    raise InputError([Problem(where, message)])
