"""A policy as a server's flags and back: lossless where the server has the knob, named where it has not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_core.policies.registry import manifest_of
from scheduler_core.spec.policy import SECTIONS, PolicySpec
from scheduler_core.types.errors import InputError, Problem


@dataclass(frozen=True)
class Knob:
    """One setting of a policy as a flag. ``words`` maps its values to arguments; None: the flag and the value."""

    flag: str
    words: Mapping[Any, tuple[str, ...]] | None = None

    def arguments(self, value: Any) -> list[str] | None:
        """The arguments that set ``value``; None when the server has no such choice."""
        if self.words is None:
            return [self.flag, str(value)]
        found = self.words.get(value)
        return None if found is None else list(found)


@dataclass(frozen=True)
class Knobs:
    """A server's knobs by the policy setting they are, and the presets whose rules are the server's own."""

    server: str
    presets: tuple[str, ...]
    knobs: Mapping[str, Knob]


_ON_OFF_CHUNKED = {True: ("--enable-chunked-prefill",), False: ("--no-enable-chunked-prefill",)}
VLLM = Knobs(
    "vllm",
    ("vllm_v1", "as_served"),
    {
        "order.by": Knob(
            "--scheduling-policy",
            {"arrival": ("--scheduling-policy", "fcfs"), "priority": ("--scheduling-policy", "priority")},
        ),
        "cache.blocks": Knob("--num-gpu-blocks-override"),
        "cache.block_size": Knob("--block-size"),
        "cache.prefix": Knob("", {"hash": ("--enable-prefix-caching",), "none": ("--no-enable-prefix-caching",)}),
        "batch.size": Knob("--max-num-seqs"),
        "batch.token_budget": Knob("--max-num-batched-tokens"),
        "batch.chunked_prefill": Knob("", _ON_OFF_CHUNKED),
        "batch.long_prefill_cap": Knob("--long-prefill-token-threshold"),
        "batch.queue_limit": Knob("--max-num-queued-reqs", {0: ()}),
        # Drafting itself takes a method and mostly a second model, of which a policy says nothing.
        "execution.draft_tokens": Knob("--speculative-config", {0: ()}),
    },
)
SGLANG = Knobs(
    "sglang",
    ("sglang", "as_served"),
    {
        "order.by": Knob(
            "--schedule-policy",
            {"arrival": ("--schedule-policy", "fcfs"), "priority": ("--enable-priority-scheduling",)},
        ),
        "cache.block_size": Knob("--page-size"),
        "cache.prefix": Knob("", {"hash": (), "none": ("--disable-radix-cache",)}),
        "batch.size": Knob("--max-running-requests"),
        "batch.token_budget": Knob("--chunked-prefill-size"),
        "batch.chunked_prefill": Knob("", {True: (), False: ("--chunked-prefill-size", "-1")}),
        "batch.queue_limit": Knob("--max-queued-requests", {0: ()}),
        "execution.draft_tokens": Knob("--speculative-num-draft-tokens", {0: ()}),
    },
)
KNOBS = {"vllm": VLLM, "sglang": SGLANG}


@dataclass(frozen=True)
class Flags:
    """Arguments of a server, and the settings of the policy that it cannot express, each with the reason."""

    arguments: tuple[str, ...]
    cannot: dict[str, str]


def to_flags(policy: PolicySpec, server: str) -> Flags:
    """The flags by which ``server`` does what ``policy`` says."""
    known = KNOBS.get(server)
    settings = settings_of(policy)
    if known is None:
        return Flags((), dict.fromkeys(settings, f"a server of kind {server} has no known flags"))
    cannot: dict[str, str] = {}
    arguments: list[str] = []
    if policy.policy not in known.presets:
        cannot["policy"] = f"{server} batches by its own rules ({known.presets[0]}), not by {policy.policy}"
    for setting, value in settings.items():
        knob = known.knobs.get(setting)
        words = _words(knob, setting, value, policy.policy)
        if words is None:
            cannot[setting] = f"{server} has no flag for {value!r}"
        else:
            arguments += words
    if "batch.chunked_prefill" in settings and settings["batch.chunked_prefill"] is False and server == "sglang":
        arguments = _without(arguments, "--chunked-prefill-size", str(settings.get("batch.token_budget")))
    return Flags(tuple(arguments), cannot)


def _words(knob: Knob | None, setting: str, value: Any, preset: str) -> list[str] | None:
    """The arguments for one setting; none where the server has no knob and the preset is its own way already."""
    if knob is None:
        return [] if settings_of(manifest_of(preset).defaults).get(setting) == value else None
    if knob.words is not None and value not in knob.words and setting == "batch.queue_limit":
        return [knob.flag, str(value)]
    return knob.arguments(value)


def _without(arguments: list[str], flag: str, value: str) -> list[str]:
    """``arguments`` less one pair of flag and value."""
    for place, word in enumerate(arguments[:-1]):
        if word == flag and arguments[place + 1] == value:
            return arguments[:place] + arguments[place + 2 :]
    return arguments


def settings_of(policy: PolicySpec) -> dict[str, Any]:
    """The settings that a policy states, by dotted name."""
    found: dict[str, Any] = {}
    for section in SECTIONS:
        stated: dict[str, Any] = getattr(policy, section).model_dump(exclude_none=True)
        found |= {f"{section}.{key}": value for key, value in stated.items()}
    return found


def from_flags(arguments: Sequence[str], server: str) -> tuple[PolicySpec, tuple[str, ...]]:
    """The policy that a server's arguments state, and the arguments that say nothing of scheduling.

    Raises:
        InputError: the server is not known, or a flag's value is missing or no number where one is needed.
    """
    known = KNOBS.get(server)
    if known is None:
        raise InputError([Problem("server", f"flags of {server!r} are not known; known: {', '.join(KNOBS)}")])
    sections: dict[str, Any] = {"policy": known.presets[0]}
    rest: list[str] = []
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--") else [word])]
    place = 0
    while place < len(words):
        used = _read_one(known, words, place, sections)
        if not used:
            rest.append(words[place])
            used = 1
        place += used
    return PolicySpec.model_validate(sections), tuple(rest)


def _read_one(known: Knobs, words: list[str], place: int, sections: dict[str, Any]) -> int:
    """Take the flag at ``place`` into ``sections``; how many words it was, 0 for one of another kind."""
    for setting, knob in known.knobs.items():
        section, _, key = setting.partition(".")
        for value, spelled in (knob.words or {}).items():
            if spelled and words[place : place + len(spelled)] == list(spelled):
                sections.setdefault(section, {})[key] = value
                return len(spelled)
        if words[place] == knob.flag and (knob.words is None or setting == "batch.queue_limit"):
            if place + 1 >= len(words) or not words[place + 1].lstrip("-").isdigit():
                raise InputError([Problem(knob.flag, "needs a whole number behind it")])
            sections.setdefault(section, {})[key] = int(words[place + 1])
            return 2
    return 0
