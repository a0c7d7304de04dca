"""Prefill in whole pages, alone or with decodes beside it, after SGLang 0.5.23 (G-03, G-11, G-12)."""

from dataclasses import dataclass
from typing import NamedTuple

from scheduler_core.policies.parts import UNLIMITED
from scheduler_core.sched.decisions import Pass, Passes, Serve
from scheduler_core.sched.view import RequestView, View
from scheduler_core.types.time import Ns


@dataclass(frozen=True, slots=True)
class PrefillsWithDecodes:
    """Prefills and newcomers first, and decodes in the same step, which sit out if their next blocks are not there.

    A step without prefill decodes, and then somebody is stopped for want of blocks (G-03, mixed chunk).
    """

    _passes = Passes((Pass(Serve.PREFILLS), Pass(Serve.WAITING), Pass(Serve.DECODES, yields=True)))

    def passes(self, view: View) -> Passes:
        return PrefillsWithDecodes._passes

    def wake_ns(self, view: View) -> Ns | None:
        return None


class PrefillBudgets(NamedTuple):
    """Tokens per step, charged in pages of ``page``: ``chunk`` for prompts that may be cut, None: none may be.

    ``inputs`` is for all prompts of a step, ``step`` the budget of the whole step. With ``mixed`` decodes share it.
    """

    page: int
    chunk: int | None
    inputs: int
    step: int
    mixed: bool = False


class PagedPrefills:
    """How much of a prompt a step computes: whole, or cut at a page (G-12), each charged by whole pages (G-11).

    Without cuts, the first prompt of a step may exceed the budget for inputs. Decodes of a mixed step are taken off
    both budgets first (G-03) and are never limited themselves. What the step has charged so far is read off its budget
    between one question and the next, and begins anew with it: nothing is kept from step to step.
    """

    __slots__ = ("_budgets", "_charged", "_decodes", "_left")

    def __init__(self, budgets: PrefillBudgets) -> None:
        self._budgets = budgets
        self._left = budgets.step
        self._charged = self._decodes = 0

    def limit(self, request: RequestView, want: int, view: View) -> int:
        if not request.prefilling:
            return UNLIMITED
        self._charge(view)
        page, chunk, inputs, _, _ = self._budgets
        pages = -(-want // page) * page
        spent = self._charged + self._decodes
        if chunk is None:
            return UNLIMITED if not self._charged or pages <= inputs - spent else 0
        left = max(0, min(chunk, inputs) - spent)
        return UNLIMITED if pages <= left else left // page * page

    def _charge(self, view: View) -> None:
        """Charge what was granted, or given back, since the last question."""
        if view.budget_left == self._budgets.step:  # a step begins
            self._charged, self._left = 0, view.budget_left
            self._decodes = 0
            if self._budgets.mixed:
                self._decodes = sum(1 for request in view.running_requests() if not request.prefilling)
            return
        granted, page = self._left - view.budget_left, self._budgets.page
        pages = -(-abs(granted) // page) * page
        self._charged += pages if granted > 0 else -pages
        self._left = view.budget_left
