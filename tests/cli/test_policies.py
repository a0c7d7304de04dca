"""Policies on the command line: which there are, what each takes, and what it is without being told otherwise."""

import json

from scheduler_core.policies.registry import manifest_of, manifests
from tests.cli.conftest import Headway


def test_all_policies_are_listed(headway: Headway) -> None:
    ran = headway("policy", "show")
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == list(manifests())


def test_each_setting_of_a_policy_is_shown_with_its_default_and_what_it_does(headway: Headway) -> None:
    ran = headway("policy", "show", "fastserve")
    rows = {line.split()[0]: line.strip() for line in ran.out.splitlines() if "." in line.split()[0]}
    assert rows.keys() >= manifest_of("fastserve").settable.keys()
    assert rows["order.levels"].split(maxsplit=2)[1:] == ["6", "Order levels: how many queues there are."]
    assert json.loads(headway("policy", "show", "fastserve", "--json").out) == manifest_of("fastserve").canonical()


def test_an_unknown_policy_is_told_with_the_nearest(headway: Headway) -> None:
    ran = headway("policy", "show", "fastserv")
    assert ran.status == 1
    assert "did you mean 'fastserve'?" in ran.err
