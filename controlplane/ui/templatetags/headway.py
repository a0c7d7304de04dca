"""Template tags: icons, status badges and readings. All text passes through Django's escaping."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.experiments.models import Experiment
from controlplane.runs.lifecycle import State
from controlplane.studies.models import Study
from controlplane.ui import readings
from scheduler_core.verdict import titles

register = template.Library()

# Status, then tone and icon. The word is always written beside the icon.
_STATES: dict[str, tuple[str, str]] = {
    State.QUEUED: ("", "clock"),
    State.DISPATCHED: ("", "send"),
    State.STARTING: ("info", "play"),
    State.RUNNING: ("info", "live"),
    State.FINALISING: ("info", "table"),
    State.SUCCEEDED: ("good", "check"),
    State.FAILED: ("bad", "cross"),
    State.CANCELLED: ("", "stop"),
    State.LOST: ("bad", "lost"),
}
_STATUSES: dict[str, tuple[str, str]] = {
    Experiment.Status.QUEUED: ("", "clock"),
    Experiment.Status.RUNNING: ("info", "live"),
    Experiment.Status.DECIDED: ("good", "scales"),
    Experiment.Status.FAILED: ("bad", "cross"),
    Experiment.Status.CANCELLED: ("", "stop"),
    Study.Status.ENDED: ("good", "check"),
}
_DECISIONS = {"accept": ("good", "check"), "tune": ("warn", "tune"), "reject": ("bad", "cross")}
_GATES = {
    "passed": ("good", "check"),
    "failed": ("bad", "cross"),
    "undecided": ("warn", "tune"),
    "missing": ("warn", "warn"),
}


@register.simple_tag
def icon(name: str) -> SafeString:
    """An icon of the sprite; decoration only, its meaning is written beside it."""
    return format_html(
        '<svg class="icon" aria-hidden="true"><use href="{}#{}"></use></svg>', static("headway/icons.svg"), name
    )


def _badge(tone: str, name: str, word: str, size: str) -> SafeString:
    return format_html('<span class="badge {} {}">{}<span>{}</span></span>', tone, size, icon(name), word)


@register.simple_tag
def state_badge(state: str, size: str = "") -> SafeString:
    """A run's state as icon and word."""
    tone, name = _STATES.get(state, ("", "info"))
    return _badge(tone, name, State(state).label if state in State.values else state, size)


@register.simple_tag
def state_looks() -> dict[str, Any]:
    """Tone, icon and word of each state, for scripts that redraw a badge."""
    return {
        "states": _looks(_STATES, State.choices),
        "statuses": _looks(_STATUSES, Experiment.Status.choices),
        "icons": static("headway/icons.svg"),
    }


def _looks(looks: dict[str, tuple[str, str]], choices: list[tuple[str, str]]) -> dict[str, dict[str, str]]:
    return {value: {"tone": looks[value][0], "icon": looks[value][1], "word": label} for value, label in choices}


@register.simple_tag
def status_badge(status: str, size: str = "") -> SafeString:
    """An experiment's or a study's status as icon and word."""
    tone, name = _STATUSES.get(status, ("", "info"))
    return _badge(tone, name, status.capitalize(), size)


@register.simple_tag
def decision_badge(decision: str | None, size: str = "") -> SafeString:
    """A verdict's decision as icon and word; none means that the arms cannot be compared."""
    tone, name = _DECISIONS.get(decision or "", ("warn", "warn"))
    return _badge(tone, name, decision.capitalize() if decision else "Not comparable", size)


@register.simple_tag
def gate_badge(state: str) -> SafeString:
    """A gate's state as icon and word."""
    tone, name = _GATES.get(state, ("", "info"))
    return _badge(tone, name, state.capitalize(), "")


@register.simple_tag
def figure(metrics: Mapping[str, Any] | None, name: str) -> SafeString:
    """A summary's figure with its unit, or the reason for its absence in words."""
    return figure_of((metrics or {}).get(name), name)


@register.simple_tag
def figure_of(data: Mapping[str, Any] | None, name: str) -> SafeString:
    """One figure that goes by ``name``, as `figure` shows it."""
    text, unit, present = readings.figure(data, name)
    if not present:
        return format_html('<span class="absent">{}</span>', text)
    return format_html("{}<small> {}</small>", text, unit) if unit else format_html("{}", text)


@register.simple_tag
def moment(at: datetime | None, missing: str = "–") -> SafeString:
    """A time as "3 min ago", exact on hover; the page keeps it current."""
    if at is None:
        return format_html('<span class="faint">{}</span>', missing)
    ago = (timezone.now() - at).total_seconds()
    length = readings.about(abs(ago))
    words = "just now" if 0 <= ago < 5 else f"{length} ago" if ago >= 0 else f"in {length}"
    local = timezone.localtime(at)
    return format_html(
        '<time datetime="{}" title="{}" data-ago>{}</time>',
        at.isoformat(),
        local.strftime("%Y-%m-%d %H:%M:%S %Z"),
        words,
    )


@register.simple_tag
def person(user: object) -> str:
    """A user's full name, or else the user name."""
    full = getattr(user, "get_full_name", lambda: "")()
    return str(full or getattr(user, "username", user))


register.filter("number", readings.number)
register.filter("duration", readings.duration)
register.filter("filesize", readings.size)
register.filter("share", readings.share)
register.filter("tenths", readings.tenths)
register.filter("change", readings.change)
register.filter("metric_title", titles.metric_title)
register.filter("metric_unit", titles.metric_unit)


@register.filter
def entry(mapping: Mapping[Any, Any] | None, key: Any) -> Any:
    """``mapping[key]``, or None."""
    return (mapping or {}).get(key)


@register.filter
def words(value: str) -> str:
    """``not_measured`` as "not measured"."""
    return str(value).replace("_", " ")


@register.filter
def counted(amount: int, singular: str) -> str:
    """``3|counted:"run"`` reads "3 runs"."""
    return readings.count(amount, singular)
