"""From what a policy spec says to its complete form, and whether a target can play it: checked before anything runs."""

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from scheduler_core.policies.layouts import homeless_tiers, layout_problems
from scheduler_core.policies.manifests import AS_SERVED, Manifest
from scheduler_core.policies.registry import manifest_of
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.fork import check_fork
from scheduler_core.spec.policy import LEAVES_ONLY, SECTIONS, PolicySpec
from scheduler_core.spec.target import Profile, TargetSpec
from scheduler_core.spec.topology import Topology
from scheduler_core.types.errors import InputError, Problem


def resolve(spec: PolicySpec) -> PolicySpec:
    """``spec`` with every default of its preset written out.

    Raises:
        InputError: the preset is unknown, or a setting that it does not take is set.
    """
    manifest = manifest_of(spec.policy)
    problems: list[Problem] = []
    merged: dict[str, Any] = {"policy": spec.policy}
    for section in SECTIONS:
        default: dict[str, Any] = getattr(manifest.defaults, section).model_dump()
        given: dict[str, Any] = getattr(spec, section).model_dump(exclude_none=True)
        for key, value in given.items():
            if f"{section}.{key}" not in manifest.settable and value != default[key]:
                problems.append(_not_taken(manifest, section, key, default[key]))
            choices = manifest.choices.get(f"{section}.{key}", (value,))
            if value not in choices:
                message = f"policy {manifest.name!r} takes one of {', '.join(choices)}, not {value!r}"
                problems.append(Problem(f"{section}.{key}", message))
        merged[section] = {**default, **given}
    problems += _cache_problems(merged["cache"])
    if problems:
        raise InputError(problems)
    return PolicySpec.model_validate(merged)


def _cache_problems(cache: dict[str, Any]) -> Iterator[Problem]:
    """What does not go together in a complete cache section."""
    if cache.get("eviction") in LEAVES_ONLY and cache.get("prefix") == "hash":
        yield Problem(
            "cache.eviction",
            f"{cache['eviction']} may drop a beginning before what follows it, which block hashes then find no more; "
            "use it with prefix radix, or one of lru, lfu, slru, aged",
        )
    if cache.get("host_prefix_blocks") and cache.get("prefix") in (None, "none"):
        yield Problem("cache.host_prefix_blocks", "keeps what a prefix cache evicts: set cache.prefix, or 0 here")
    low, high = cache.get("clean_low") or 0, cache.get("clean_high")
    if low and cache.get("prefix") in (None, "none"):
        yield Problem("cache.clean_low", "evicts what a prefix cache holds: set cache.prefix, or 0 here")
    if high and high < low:
        yield Problem("cache.clean_high", f"{high:g} is below clean_low ({low:g}); use at least that, or leave it out")
    if high and not low:
        yield Problem("cache.clean_high", "is where eviction below clean_low ends: set cache.clean_low as well")
    if cache.get("preemption") in ("swap", "cheapest") and not cache.get("host_blocks"):
        message = f"{cache['preemption']} copies to host memory: set cache.host_blocks as well, or use recompute"
        yield Problem("cache.preemption", message)


def _not_taken(manifest: Manifest, section: str, key: str, fixed: object) -> Problem:
    takes = [name for name in manifest.settable if name.startswith(f"{section}.")]
    always = "" if fixed is None else f" (always {fixed!r})"
    return Problem(
        f"{section}.{key}",
        f"does not apply to policy {manifest.name!r}{always}; of this section it takes {', '.join(takes) or 'nothing'}",
    )


def check_against(spec: PolicySpec, *, model_length: int, kv_blocks: int | None) -> None:
    """Refuse, when it is saved, a policy that could never serve what its target allows.

    ``model_length`` is the longest sequence of the target's model in tokens, ``kv_blocks`` its pool, None if unknown.

    Raises:
        InputError: names each setting and what would be right.
    """
    full = resolve(spec)
    problems: list[Problem] = []
    budget = full.batch.token_budget
    if full.batch.chunked_prefill is False and budget is not None and budget < model_length - 1:
        problems.append(
            Problem(
                "batch.token_budget",
                f"{budget} is below the model's longest prompt ({model_length - 1} tokens) and chunked_prefill is off, "
                f"so longer prompts could never run; use at least {model_length - 1}, or switch chunked_prefill on",
            )
        )
    if full.batch.chunked_prefill is False and full.batch.long_prefill_cap:
        problems.append(
            Problem("batch.long_prefill_cap", "cuts prompts into chunks, but chunked_prefill is off; set one of them")
        )
    if full.batch.chunked_prefill is False and full.batch.prefill_budget:
        problems.append(
            Problem("batch.prefill_budget", "cuts prompts into chunks, but chunked_prefill is off; set one of them")
        )
    if full.cache.blocks is not None and kv_blocks is not None and full.cache.blocks > kv_blocks:
        problems.append(Problem("cache.blocks", f"{full.cache.blocks} is more than the {kv_blocks} of the target"))
    if problems:
        raise InputError(problems)


def check_layout(policy: PolicySpec, target: TargetSpec) -> None:
    """Refuse a resolved policy whose section ``pools`` does not suit the instances of ``target``."""
    pools, topology = policy.pools, target.topology
    if pools.hold is not None:
        topology = _held(pools.hold, topology)
    if pools.layout == "single":
        if topology is not None and topology.instances > 1:
            message = f"is single, but the target has {topology.instances} instances; use replicas or split"
            raise InputError([Problem("pools.layout", message)])
        return
    if topology is None:
        message = f"is {pools.layout}, but the target is one instance; give it a topology, or use single"
        raise InputError([Problem("pools.layout", message)])
    problems = list(layout_problems(pools, topology))
    if problems:
        raise InputError(problems)


def _held(hold: Mapping[str, int], topology: Topology | None) -> Topology:
    """What is held of ``topology``; refuses groups and numbers that it has not, and to hold nothing."""
    groups = {} if topology is None else topology.groups
    problems = [
        Problem(f"pools.hold.{name}", f"is {number}, but the target has {groups[name].count if name in groups else 0}")
        for name, number in hold.items()
        if name not in groups or number > groups[name].count
    ]
    if problems or topology is None:
        raise InputError(problems or [Problem("pools.hold", "the target is one instance; give it a topology")])
    held = topology.holding(hold)
    if not held.groups:
        raise InputError([Problem("pools.hold", "holds no instance at all")])
    return held


def _check_execution(policy: PolicySpec, target: TargetSpec) -> None:
    if policy.execution.overlap in (None, "none"):
        return
    if target.torch is not None and policy.execution.overlap == "pipelined":
        message = "pipelined needs a modelled instance; kernels know two_stream and schedule_ahead"
        raise InputError([Problem("execution.overlap", message)])
    if target.torch is None and (
        target.modelled is None or not (target.topology is None or target.topology.instances == 1)
    ):
        message = "needs one instance that plans its own steps; those of a cluster run theirs one by one"
        raise InputError([Problem("execution.overlap", message)])


def _check_dual_batch(policy: PolicySpec, target: TargetSpec, profile: Profile | None) -> None:
    """Half batches have something to hide only where devices of an instance talk to each other.

    A group with a profile of its own may be such an instance; what is not known here is not refused.
    """
    if policy.execution.dual_batch in (None, "never"):
        return
    groups = () if target.topology is None else target.topology.groups.values()
    spread = profile is None or profile.devices > 1
    if target.modelled is None or not (spread or any(group.profile or group.parallel for group in groups)):
        message = "needs a modelled target with instances that are spread over devices: parallel, or MODEL@DEVICExN"
        raise InputError([Problem("execution.dual_batch", message)])


def _check_drafts(policy: PolicySpec, target: TargetSpec) -> None:
    """Drafts need somebody who checks them, knows what they are worth, and is done before the next ones are made."""
    asked, where = policy.execution.draft_tokens, "execution.draft_tokens"
    if not asked:
        return
    if target.modelled is None:
        message = (
            "needs a modelled target: these kernels compute one token of a request at a time; leave it out, or use 0"
        )
        raise InputError([Problem(where, message)])
    worth = target.modelled.speculative
    if worth is None:
        message = "needs target.modelled.speculative, which says how many of them are accepted and what they take"
        raise InputError([Problem(where, message)])
    if asked > worth.positions:
        message = f"is {asked}, and target.modelled.speculative says what comes of the first {worth.positions} only"
        raise InputError([Problem(where, message)])
    if policy.execution.overlap == "schedule_ahead":
        message = "follow the newest token, which schedule_ahead does not wait for; use another execution.overlap"
        raise InputError([Problem(where, message)])


def _check_served(policy: PolicySpec, *, server: bool) -> None:
    if policy.policy == AS_SERVED.name and not server:
        message = f"{AS_SERVED.name!r} says what a server was started with; this target runs a policy of its own"
        raise InputError([Problem("policy", message)])


def check_playable(policy: PolicySpec, target: TargetSpec, profile: Profile | None) -> PolicySpec:
    """``policy`` with every default written out, if ``target`` can play it; ``profile`` is that of a modelled one.

    Raises:
        InputError: names what is wrong or what the target cannot do.
    """
    # What a torch model allows is known to its worker alone; 1 leaves only the checks against the pool.
    model_length = 1 if profile is None else profile.model_length
    kv_blocks = target.kv_blocks or (None if profile is None else profile.kv_blocks)
    resolved = resolve(policy)
    _check_served(policy, server=target.server is not None)
    check_against(policy, model_length=model_length, kv_blocks=kv_blocks)
    if target.server is None:  # how a deployment is laid out and executes, its own flags say
        check_layout(resolved, target)
        _check_execution(resolved, target)
        _check_dual_batch(resolved, target, profile)
        _check_drafts(resolved, target)
    return resolved


def playable(policy: PolicySpec, target: TargetSpec, profile: Profile | None) -> bool:
    """Whether `check_playable` has nothing against it."""
    try:
        check_playable(policy, target, profile)
    except InputError:
        return False
    return True


def resolve_arms(spec: ExperimentSpec, profile: Profile | None) -> dict[str, PolicySpec]:
    """Each arm's policy with every default written out, in the order of the arms.

    ``profile`` is that of a modelled target, None for another.

    Raises:
        InputError: lists what is wrong in any arm, each with its path (``arms.NAME.batch.size``).
    """
    resolved: dict[str, PolicySpec] = {}
    problems: list[Problem] = []
    for name, policy in spec.arms.items():
        try:
            resolved[name] = check_playable(policy, spec.target, profile)
        except InputError as error:
            problems += [Problem(f"arms.{name}.{item.where}".rstrip("."), item.message) for item in error.problems]
        else:
            problems += _feedback_problems(spec, resolved[name], f"arms.{name}.feedback.attainment")
    problems += _fork_problems(spec, resolved)
    if spec.events is not None and spec.target.server is not None:
        problems.append(Problem("events", "happen in process; a server forgets its cache between runs (reset_cache)"))
    problems += _outage_problems(spec)
    for name, policy in resolved.items():
        if spec.target.topology is not None:
            problems += homeless_tiers(policy.pools, spec.target.topology, spec.workload.tiers, f"arms.{name}")
    if problems:
        raise InputError(problems)
    return resolved


def _feedback_problems(spec: ExperimentSpec, policy: PolicySpec, where: str) -> Iterator[Problem]:
    if policy.feedback.attainment and not any(tier.ttft_ms for tier in spec.workload.tiers.values()):
        yield Problem(where, "adapts to promises on the first token, and no tier of the workload has a ttft_ms")


def _outage_problems(spec: ExperimentSpec) -> Iterator[Problem]:
    topology, free_s = spec.target.topology, dict[tuple[str, int], float]()
    outages = enumerate(() if spec.events is None else spec.events.outages)
    for number, outage in sorted(outages, key=lambda item: item[1].at_s):
        where, group = f"events.outages.{number}", outage.group
        if topology is None:
            yield Problem(where, "the target is one instance; give it a topology of several")
            continue
        count = topology.groups[group].count if group in topology.groups else 0
        if not count:
            yield Problem(f"{where}.group", f"there is no group {group!r}; the target has {', '.join(topology.groups)}")
        elif outage.number >= count:
            yield Problem(f"{where}.number", f"is {outage.number}, but {group} has {count} instances, counted from 0")
        elif outage.at_s < free_s.get((group, outage.number), 0.0):
            yield Problem(f"{where}.at_s", f"is {outage.at_s:g}, when {group} {outage.number} is not back yet")
        back_s = inf if outage.back_after_s is None else outage.back_after_s + topology.cold_start.total_s
        free_s[group, outage.number] = outage.at_s + back_s


def _fork_problems(spec: ExperimentSpec, resolved: Mapping[str, PolicySpec]) -> list[Problem]:
    trunk = resolved.get(spec.baseline)
    if spec.fork is None or trunk is None:
        return []
    if spec.target.modelled is None or spec.target.topology is not None:
        return [Problem("fork", "needs one modelled instance: only there is a beginning the same run every time")]
    problems: list[Problem] = []
    for name, policy in resolved.items():
        try:
            check_fork(trunk, policy)
        except InputError as error:
            problems += [Problem(f"arms.{name}.{item.where}", item.message) for item in error.problems]
    return problems
