"""Policies: presets as their manifests describe them, saved policies, their versions and differences."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Count, Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.access import may_change, require_change, require_person
from controlplane.policies import selectors, services
from controlplane.policies.models import Policy, PolicyVersion
from controlplane.specs import brief
from controlplane.ui.acting import REFUSALS, act
from controlplane.ui.comparing import differences, other_version
from controlplane.ui.editor import Editor, posted, refuse
from controlplane.ui.listing import Filter, listing
from controlplane.ui.setting import policy_setting
from scheduler_core.policies.manifests import Manifest
from scheduler_core.policies.registry import manifests
from scheduler_core.spec.policy import SECTIONS, PolicySpec
from scheduler_core.spec.yamltext import dump_yaml

SECTION_TITLES = {
    "order": "Request order",
    "cache": "Cache",
    "batch": "Batch and queue",
    "predict": "Prediction",
    "admission": "Admission",
    "feedback": "Feedback",
    "pools": "Pools",
    "execution": "Execution",
}


@login_required
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Presets and all saved policies."""
    filters = [
        Filter("owner", "Owner", {"me": ("me", Q(owner_id=request.user.pk))}),
        Filter("archived", "Archived", {"yes": ("only archived", Q(archived_at__isnull=False))}),
    ]
    rows = selectors.visible_to(request.user).annotate(uses=Count("versions__arms"))
    rows = rows.order_by("-created_at", "id")
    if request.GET.get("archived") != "yes":
        rows = rows.filter(archived_at=None)
    page = listing(request, rows, search=("name",), filters=filters)
    presets = [describe(item) for item in manifests().values()]
    return render(request, "policies/list.html", {"page": page, "presets": presets})


def describe(manifest: Manifest) -> dict[str, Any]:
    """A preset for people: its text and each setting with default and help, by section."""
    sections = []
    for section in SECTIONS:
        defaults = getattr(manifest.defaults, section)
        names = [name for name in type(defaults).model_fields if f"{section}.{name}" in manifest.settable]
        rows = [
            {"name": name, "default": _word(getattr(defaults, name)), "help": manifest.settable[f"{section}.{name}"]}
            for name in names
        ]
        if rows:
            sections.append({"title": SECTION_TITLES[section], "name": section, "rows": rows})
    return {"manifest": manifest, "sections": sections}


def _word(value: object) -> str:
    if value is None:
        return "–"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """A new policy; ``?preset=`` names what it starts from, ``?from=`` a saved version."""
    person = require_person(request.user)
    if request.method != "POST":
        return _edit_page(request, Editor(PolicySpec, policy_setting(), _start(request)), title="New policy")
    editor = _posted(request)
    name = request.POST.get("name", "").strip()
    if editor.acts:
        try:
            version = services.create_policy(owner=person, name=name, spec=editor.data)
        except REFUSALS as error:
            refuse(request, editor, error)
        else:
            messages.success(request, f"Policy “{name}” is saved.")
            return redirect("policy-version", version.policy_id, version.number)
    return _edit_page(request, editor, name=name, title="New policy")


def _found(request: HttpRequest, policy_id: str) -> Policy:
    return get_object_or_404(selectors.visible_to(request.user), pk=policy_id)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, policy_id: str) -> HttpResponse:
    """The next version of a policy."""
    policy = _found(request, policy_id)
    require_change(request.user, policy)
    title = f"New version of {policy.name}"
    if request.method != "POST":
        newest = policy.versions.first()
        editor = Editor(PolicySpec, policy_setting(), brief(PolicySpec, newest.spec) if newest else {})
        return _edit_page(request, editor, title=title, policy=policy)
    editor = _posted(request)
    if editor.acts:
        try:
            version = services.add_version(policy=policy, user=require_person(request.user), spec=editor.data)
        except REFUSALS as error:
            refuse(request, editor, error)
        else:
            messages.success(request, f"Version {version.number} is saved.")
            return redirect("policy-version", policy.pk, version.number)
    return _edit_page(request, editor, title=title, policy=policy)


def _posted(request: HttpRequest) -> Editor:
    return posted(request, PolicySpec, policy_setting(), services.read_policy)


def _start(request: HttpRequest) -> dict[str, Any]:
    if source := request.GET.get("from"):
        version = selectors.versions_visible_to(request.user).filter(pk=source).first()
        if version is not None:
            return brief(PolicySpec, version.spec)
    preset = request.GET.get("preset", "")
    return {"policy": preset if preset in manifests() else "vllm_v1"}


def _edit_page(
    request: HttpRequest, editor: Editor, *, title: str, name: str = "", policy: Policy | None = None
) -> HttpResponse:
    problems = {item.where: item.message for item in editor.problems}
    preset = manifests().get(str(editor.data.get("policy", "")))
    context = {
        "editor": editor,
        "title": title,
        "name": name,
        "name_error": problems.get("name", ""),
        "policy": policy,
        "preset": preset,
    }
    status = 422 if request.method == "POST" and editor.problems and editor.action == "save" else 200
    return render(request, "policies/edit.html", context, status=status)


@login_required
@require_safe
def latest(request: HttpRequest, policy_id: str) -> HttpResponse:
    """To the newest version."""
    policy = _found(request, policy_id)
    newest = policy.versions.first()
    if newest is None:
        raise Http404
    return redirect("policy-version", policy.pk, newest.number)


@login_required
@require_safe
def version(request: HttpRequest, policy_id: str, number: int) -> HttpResponse:
    """One version: as written and with every default, its difference from another version, where it is used."""
    found = get_object_or_404(selectors.versions_visible_to(request.user), policy_id=policy_id, number=number)
    versions = list(found.policy.versions.all())
    other = other_version(request, versions, number)
    arms = found.arms.select_related("experiment", "experiment__owner").order_by("-experiment__created_at")
    context = {
        "version": found,
        "versions": versions,
        "other": other,
        "changes": differences(other.resolved, found.resolved) if other else [],
        "yaml": dump_yaml(brief(PolicySpec, found.spec)),
        "manifest": manifests().get(str(found.spec.get("policy", ""))),
        "resolved": _resolved_sections(found),
        "uses": list(arms[:20]),
        "may_change": may_change(request.user, found.policy),
    }
    return render(request, "policies/version.html", context)


def _resolved_sections(version: PolicyVersion) -> list[dict[str, Any]]:
    """Every setting in force, and whether it was written or is the preset's default."""
    written = brief(PolicySpec, version.spec)
    answer = []
    for section in SECTIONS:
        values = {key: value for key, value in (version.resolved.get(section) or {}).items() if value is not None}
        rows = [
            {"name": key, "value": _word(value), "written": key in (written.get(section) or {})}
            for key, value in values.items()
        ]
        answer.append({"title": SECTION_TITLES[section], "rows": rows})
    return answer


@login_required
@require_POST
def archive(request: HttpRequest, policy_id: str) -> HttpResponse:
    """Hide a policy from lists, or bring it back."""
    policy = _found(request, policy_id)
    archived = request.POST.get("archived") != "no"
    person = require_person(request.user)
    done = f"“{policy.name}” is {'archived' if archived else 'back in the lists'}."
    return act(
        request,
        lambda: services.set_archived(policy=policy, user=person, archived=archived),
        done=done,
        then=f"/policies/{policy.pk}/",
    )
