"""Logits straight from the decoder, past the executor, for comparing numbers."""

import torch

from gpu_runner.engine.instance import build_pool, device_batch
from gpu_runner.engine.layout import flatten
from gpu_runner.engine.model.decoder import Decoder
from gpu_runner.engine.model.opening import open_weights
from gpu_runner.engine.prompts import prompt_ids
from gpu_runner.engine.references import resolve
from gpu_runner.engine.rows import Rows
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.plan import Grant, Phase
from tests.engine.conftest import settings_for

_CPU = torch.device("cpu")


def last_logits(
    model: str, planned: PlannedRequest, *, chunk: int, attention: str = "auto", dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Logits ``[vocab]`` behind the prompt's last token, computed in chunks of ``chunk``."""
    settings = settings_for(model, attention=attention)
    config = resolve(model)
    decoder = Decoder(config, open_weights(model, config, 0), dtype, _CPU)
    pool = build_pool(settings, decoder, 1)
    rows = Rows(kv_blocks=settings.kv_blocks, block_size=settings.block_size)
    rows.open(planned, prompt_ids(planned, vocab_size=config.vocab_size, prefix_block_size=8))
    blocks = tuple(range(-(-planned.prompt_tokens // settings.block_size)))
    logits = torch.empty(0)
    for start in range(0, planned.prompt_tokens, chunk):
        length = min(chunk, planned.prompt_tokens - start)
        last = start + length == planned.prompt_tokens
        grant = Grant(planned.index, 0, start, length, () if start else blocks, last, Phase.PREFILL)
        flat = flatten(rows.apply((grant,)), rows, settings.block_size)
        with torch.inference_mode():
            logits = decoder.forward(device_batch(flat, decoder, _CPU), pool)
    return logits[0]
