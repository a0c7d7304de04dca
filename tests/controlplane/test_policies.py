"""Policies and their versions."""

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied

from controlplane.accounts.models import User
from controlplane.policies import selectors
from controlplane.policies.models import Policy
from controlplane.policies.services import add_version, create_policy, set_archived
from scheduler_core.types.errors import InputError

SPEC = {"policy": "vllm_v1", "batch": {"token_budget": 512}}


class TestPolicies:
    def test_a_version_keeps_what_was_written_and_what_it_means(self, owner: User) -> None:
        version = create_policy(owner=owner, name="small steps", spec=SPEC)
        assert version.spec["batch"]["size"] is None
        assert version.resolved["batch"]["token_budget"] == 512
        assert version.resolved["batch"]["size"] is not None

    def test_versions_count_up_and_equal_specs_make_none(self, owner: User) -> None:
        first = create_policy(owner=owner, name="p", spec=SPEC)
        assert add_version(policy=first.policy, user=owner, spec=SPEC) == first
        second = add_version(policy=first.policy, user=owner, spec={"policy": "static"})
        assert second.number == 2
        assert add_version(policy=first.policy, user=owner, spec=SPEC).number == 3, "going back is a version too"

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ({"policy": "vllm_v2"}, "did you mean"),
            ({"policy": "static", "batch": {"token_budgt": 1}}, "did you mean 'token_budget'"),
            ({"policy": "static", "batch": {"long_prefill_cap": 5}}, "does not apply to policy 'static'"),
            ("static", "keys and values are expected"),
        ],
    )
    def test_a_bad_spec_is_refused_with_its_field(self, owner: User, spec: object, words: str) -> None:
        with pytest.raises(InputError, match=words):
            create_policy(owner=owner, name="p", spec=spec)
        assert not Policy.objects.exists()

    def test_a_name_in_use_is_said(self, owner: User, teammate: User) -> None:
        create_policy(owner=owner, name="p", spec=SPEC)
        with pytest.raises(InputError, match="already have a policy"):
            create_policy(owner=owner, name="p", spec=SPEC)
        create_policy(owner=teammate, name="p", spec=SPEC)

    def test_only_owner_and_staff_change_it(
        self, owner: User, teammate: User, staff: User, outsider: AnonymousUser
    ) -> None:
        policy = create_policy(owner=owner, name="p", spec=SPEC).policy
        for change in (
            lambda who: add_version(policy=policy, user=who, spec=SPEC),
            lambda who: set_archived(policy=policy, user=who, archived=True),
        ):
            for who in (teammate, outsider):
                with pytest.raises(PermissionDenied):
                    change(who)
            change(staff)
        with pytest.raises(PermissionDenied):
            create_policy(owner=outsider, name="q", spec=SPEC)  # type: ignore[arg-type]

    def test_everyone_signed_in_sees_it(self, owner: User, teammate: User, outsider: AnonymousUser) -> None:
        version = create_policy(owner=owner, name="p", spec=SPEC)
        assert list(selectors.visible_to(teammate)) == [version.policy]
        assert not selectors.visible_to(outsider).exists()
        assert not selectors.versions_visible_to(outsider).exists()

    def test_presets_are_plain_data(self) -> None:
        named = {preset["name"]: preset for preset in selectors.presets()}
        assert named["static"]["defaults"]["policy"] == "static"
        assert "batch.size" in named["static"]["settable"]
