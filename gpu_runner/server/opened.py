"""A deployment made ready for one run: launched if it must be, asked what it is, its cache emptied, warmed up."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_runner.server.adapters.detect import detect
from gpu_runner.server.adapters.effect import check_effect
from gpu_runner.server.adapters.flags import to_flags
from gpu_runner.server.adapters.known import Found
from gpu_runner.server.client.prompts import Manner, PromptWriter
from gpu_runner.server.http.loop import run
from gpu_runner.server.http.pool import Origin, Pool
from gpu_runner.server.http.request import NoAnswerError, ask
from gpu_runner.server.launch.launcher import Launched
from gpu_runner.server.observe.nvml import NvmlDevices
from gpu_runner.server.observe.source import LookedAt, Source
from scheduler_core.spec.addresses import Reach
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.sampling import Sampling
from scheduler_core.spec.server import Access, Deployment, MetricSource, ServerTarget
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.client_records import Deployed
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.records import Loaded

WARMUP_TIMEOUT_S = 300.0


@dataclass
class Opened:
    """A deployment ready to be played against; `close` ends what was started for it."""

    origin: Origin
    headers: dict[str, str]
    found: Found
    manner: Manner
    deployed: Deployed
    sources: list[Source]
    launched: Launched | None = None
    loaded: Loaded = field(default_factory=lambda: Loaded(0, 0))

    def close(self) -> None:
        """End the server if it was started here."""
        if self.launched is not None:
            self.launched.close()


def open_deployment(
    target: ServerTarget, arm: str, access: Access, policy: PolicySpec, *, folder: Path, stop: Callable[[], bool]
) -> Opened:
    """Bring the deployment of ``arm`` to its starting line.

    Raises:
        InputError: it cannot be started or reached, the policy is not in force, or it cannot do what is asked.
    """
    launched = _launch(access, policy, folder, stop)
    try:
        return run(_open(target, target.deployment(arm), access, policy, launched))
    except BaseException:
        if launched is not None:
            launched.close()
        raise


def _launch(access: Access, policy: PolicySpec, folder: Path, stop: Callable[[], bool]) -> Launched | None:
    template = access.launch
    if template is None:
        return None
    flags = to_flags(policy, template.server)
    if flags.cannot and template.policy_flags:
        raise InputError([Problem(f"policy.{name}", reason) for name, reason in flags.cannot.items()])
    launched = Launched(template, flags.arguments, folder / "server.log")
    try:
        launched.start(stop)
    except BaseException:
        launched.close()
        raise
    return launched


async def _open(
    target: ServerTarget, deployment: Deployment, access: Access, policy: PolicySpec, launched: Launched | None
) -> Opened:
    url = launched.url if launched is not None else access.url
    assert url is not None  # whoever makes the job resolves endpoint and launch
    reach = Reach() if launched is not None else Reach(access.allowed, access.closed)
    origin = Origin(url, reach, access.verify_tls, access.ca_file)
    pool = Pool(origin, limit=64)
    try:
        found = await detect(pool, access.headers, kind=deployment.server, model=target.model)
        manner = _manner(target, found)
        notes = [*found.notes, *check_effect(policy, found), *_manner_notes(target, manner)]
        await _warm_up(pool, access.headers, manner, target.warmup_requests)
        cache = await _empty_cache(pool, access.headers, found, wanted=target.reset_cache)
    finally:
        pool.close()
    opened = Opened(
        origin=origin,
        headers=dict(access.headers),
        found=found,
        manner=manner,
        deployed=Deployed(found.kind, found.version, {**found.settings, **found.other}, cache, notes),
        sources=[*_sources(deployment, found, origin), *([NvmlDevices()] if target.device_monitor else [])],
        launched=launched,
    )
    if launched is not None:
        opened.loaded = Loaded(start_ns=-launched.load_ns, end_ns=0)
    return opened


def _manner(target: ServerTarget, found: Found) -> Manner:
    able = found.abilities
    chat = target.api == "chat"
    text = chat or target.prompts == "text" or not able.token_ids
    return Manner(
        model=found.model,
        chat=chat,
        text=text,
        tokenizer=target.tokenizer,
        vocab_size=target.vocab_size,
        counts_per_chunk=able.counts_per_chunk,
        answer_ids=able.answer_ids and target.feed_back and not text,
        priorities=able.priorities,
        sampling=target.sampling or Sampling(),
        extra={"ignore_eos": True} if target.ignore_eos and able.ignore_eos else {},
    )


def _manner_notes(target: ServerTarget, manner: Manner) -> list[str]:
    notes = []
    if manner.text and target.prompts == "token_ids" and target.api == "completions":
        notes.append("the server takes no token ids: prompts are sent as text")
    if manner.text and manner.tokenizer is None:
        notes.append("without the model's tokenizer prompt lengths are near the plan's, not equal to them")
    if target.ignore_eos and not manner.extra:
        notes.append("output lengths are not forced: the server offers no ignore_eos")
    return notes


async def _warm_up(pool: Pool, headers: dict[str, str], manner: Manner, count: int) -> None:
    """Send ``count`` short requests together, none of which is measured; a refusal here is one of the run."""
    whole = replace(manner, extra={**manner.extra, "stream": False}, counts_per_chunk=False)
    writer = PromptWriter(whole)
    bodies = []
    for number in range(count):
        body, _ = writer.body(PlannedRequest(number, 0, 64, 8, 8, seed=number))
        fields = json.loads(body)
        fields.pop("stream_options", None)
        bodies.append(json.dumps(fields).encode())
    asked = (ask(pool, "POST", manner.path, headers=headers, body=b, timeout_s=WARMUP_TIMEOUT_S) for b in bodies)
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(answer, NoAnswerError):
            raise InputError([Problem("target.server", f"a warm-up request got no answer: {answer}")])
        if isinstance(answer, BaseException):
            raise answer
        if answer.status != 200:
            shown = answer.body[:300].decode(errors="replace")
            raise InputError([Problem("target.server", f"a warm-up request was refused ({answer.status}): {shown}")])


async def _empty_cache(pool: Pool, headers: dict[str, str], found: Found, *, wanted: bool) -> str:
    """Have the prefix cache emptied; how it stands in words. Every run's prompts are salted besides."""
    if not wanted:
        return "left as it was; prompts are salted per run, so nothing of another run can be hit"
    path = found.abilities.reset_path
    if path:
        with contextlib.suppress(NoAnswerError):
            answer = await ask(pool, "POST", path, headers=headers, timeout_s=60.0)
            if answer.status == 200:
                return "emptied before the run, and prompts are salted per run"
    return "could not be emptied; prompts are salted per run, so nothing of another run can be hit"


def _sources(deployment: Deployment, found: Found, origin: Origin) -> list[LookedAt]:
    """The declared sources; where none is an instance, the traffic address's own page too, if the server has one."""
    declared = [LookedAt(spec, replace(origin, url=spec.url)) for spec in deployment.sources]
    if found.kind == "openai" or any(spec.role != "devices" for spec in deployment.sources):
        return declared
    return [LookedAt(MetricSource(url=origin.url), origin), *declared]
