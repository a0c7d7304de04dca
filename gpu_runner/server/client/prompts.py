"""Request bodies made from an arrival plan: prompts whose shared beginnings follow its block ids.

Every prompt of a run is salted, so that a run never hits what another one left in a prefix cache, and its own sharing
stays exactly the plan's.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpu_runner.engine.prompts import Tokens, token_ids
from scheduler_core.spec.sampling import Sampling
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import InputError, Problem

_MASK = (1 << 64) - 1
_LARGEST_SEED = (1 << 63) - 1
_compact = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make an encoder for each body
LOWEST_ID = 16  # below lie the special tokens of most vocabularies

Decode = Callable[[list[int]], str]


@dataclass(frozen=True)
class Manner:
    """How requests are written: everything that is the same for all of a run.

    ``extra`` goes into every body as it is. ``answers`` are token ids, text, or nothing that can be fed back.
    """

    model: str
    chat: bool = False
    text: bool = False
    tokenizer: str | None = None
    vocab_size: int = 4096
    block_size: int = 16
    salt: int = 0
    counts_per_chunk: bool = True
    answer_ids: bool = False
    priorities: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where requests are posted."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"


@dataclass
class Said:
    """One turn of a session: what was sent and what came back, for the next turn to contain."""

    ids: Tokens | None = None
    text: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)


class PromptWriter:
    """Bodies for requests. ``history`` maps a later turn to the tokens said before it: prompt and answer."""

    def __init__(self, manner: Manner, history: Mapping[int, int] | None = None) -> None:
        self._manner = manner
        self._history = history or {}
        self._decode = _decoder(manner)
        self._base = {
            "model": manner.model,
            **_sampling_fields(manner.sampling),
            "stream": True,
            "stream_options": {"include_usage": True}
            | ({"continuous_usage_stats": True} if manner.counts_per_chunk else {}),
            **manner.extra,
        }

    def body(self, request: PlannedRequest, before: Said | None = None) -> tuple[bytes, Said]:
        """The body of ``request``, and what it says; ``before`` is the turn it follows, with its real answer."""
        manner = self._manner
        ids = self.ids(request)
        fields: dict[str, Any] = {**self._base, "max_tokens": request.output_tokens}
        if manner.sampling.temperature:
            fields["seed"] = request.draw_seed & _LARGEST_SEED  # as signed integers of 64 bits
        if manner.priorities and request.priority:
            fields["priority"] = request.priority
        if not manner.text:
            if before is not None and before.ids is not None:
                known = before.ids[: request.prompt_tokens]
                ids = np.concatenate((known, ids[len(known) :]))
            said = Said(ids=ids)
            fields["prompt"] = ids.tolist()
        else:
            said = self._texts(request, ids, before)
            fields |= {"messages": said.messages} if manner.chat else {"prompt": said.text}
        if manner.answer_ids:
            fields["return_token_ids"] = True
        return _compact(fields).encode(), said

    def ids(self, request: PlannedRequest) -> Tokens:
        """The salted token ids of a prompt, each in ``[LOWEST_ID, vocab_size)``."""
        salt, size = self._manner.salt, self._manner.vocab_size - LOWEST_ID
        blocks = [(block ^ salt) & _MASK for block in request.prefix_blocks]
        seed = (request.seed ^ salt) & _MASK
        made = token_ids(seed, blocks, request.prompt_tokens, vocab_size=size, block_size=self._manner.block_size)
        return made + LOWEST_ID

    def answered(self, said: Said, token_ids: list[int], text: str) -> Said:
        """``said`` with its answer behind it, ready for the next turn."""
        if said.ids is not None:
            return Said(ids=np.concatenate((said.ids, np.asarray(token_ids, dtype=said.ids.dtype))))
        return Said(text=said.text + text, messages=[*said.messages, {"role": "assistant", "content": text}])

    def _texts(self, request: PlannedRequest, ids: Tokens, before: Said | None) -> Said:
        if before is None:
            text = self._in_blocks(ids)
            return Said(text=text, messages=[{"role": "user", "content": text}])
        # How long history is in tokens only the server knows: the new part is what the plan adds to the turn before.
        added = self._in_blocks(ids[-max(1, request.prompt_tokens - self._history.get(request.index, 0)) :])
        return Said(text=before.text + added, messages=[*before.messages, {"role": "user", "content": added}])

    def _in_blocks(self, ids: Tokens) -> str:
        """Text of ``ids``, block by block, so that equal blocks are equal text whatever follows them."""
        size = self._manner.block_size
        values: list[int] = ids.tolist()
        return "".join(self._decode(values[at : at + size]) for at in range(0, len(values), size))


def _decoder(manner: Manner) -> Decode:
    if manner.tokenizer is None:
        return lambda ids: "".join(f" {value % 1000}" for value in ids)
    file = Path(manner.tokenizer).expanduser() / "tokenizer.json"
    try:
        from tokenizers import Tokenizer
    except ImportError:
        problem = "needs the package tokenizers on this worker; install it, or use prompts: token_ids"
        raise InputError([Problem("target.server.tokenizer", problem)]) from None
    if not file.is_file():
        raise InputError([Problem("target.server.tokenizer", f"there is no file {file}")])
    tokenizer = Tokenizer.from_file(str(file))
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


def _sampling_fields(sampling: Sampling) -> dict[str, float]:
    """``top_k`` is not OpenAI's, but vLLM's and SGLang's: it is sent only where it was asked for."""
    if not sampling.temperature:
        return {"temperature": 0}
    kept = {"top_k": sampling.top_k} if sampling.top_k else {}
    return {"temperature": sampling.temperature, "top_p": sampling.top_p, **kept}
