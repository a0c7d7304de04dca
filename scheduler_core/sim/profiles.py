"""Bundled reference profiles: plain data, so that a modelled target works before anything was calibrated.

They are orders of magnitude with a wide stated error, not measurements of the reader's machine, and say so in
``measured_on``; a calibration made here is always preferred.
"""

from scheduler_core.spec.target import Affine, Profile

# Two server cores with AVX-512 decode the 8-million-parameter shape for 64 sequences in about 20 ms a step
# (vLLM's CPU build, same shape): 3 ms of that is there for any step, most of the rest reads the sequences' KV.
CPU_SMALL = Profile(
    name="reference-cpu-demo-s",
    model="demo-s",
    device="two CPU cores (reference figures)",
    dtype="float32",
    cost=Affine(
        base_ns=3_000_000,
        prefill_token_ns=60_000,
        decode_request_ns=120_000,
        context_token_ns=450,
        prefill_pair_ns=60,
    ),
    residual_share=0.08,
    drift_share=0.05,
    held_out_error_share=0.25,
    domain={"prefill_tokens": 2048, "decode_requests": 64, "context_tokens": 40_960, "prefill_pairs": 2_098_176},
    steps_measured=0,
    measured_on={"note": "reference figures, not measured on this machine; calibrate to replace them"},
)


def reference_profiles() -> tuple[Profile, ...]:
    """All bundled profiles, best known first."""
    return (CPU_SMALL,)
