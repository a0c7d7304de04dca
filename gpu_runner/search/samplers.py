"""Which policy is tried next: every combination of a grid, at random, or by a tree of Parzen estimators."""

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

from scheduler_core.spec.studies import Dimension, SearchSpec
from scheduler_core.verdict.pareto import Way
from scheduler_core.verdict.search import objectives

Choice = dict[str, str]
MOST_ASKED = 100  # times that the estimator is asked for one choice that was not refused before
PLAYABLE = "playable"  # the constraint that a refused choice breaks: above 0 is broken


class Sampler(Protocol):
    """Gives choices, and is told what each reached (None where it reached nothing)."""

    def choices(self) -> Iterator[Choice]:
        """Choices until there is nothing more to try, at most ``trials`` of the spec."""
        ...

    def tell(self, figures: Mapping[str, float] | None) -> None:
        """What the choice given last reached."""
        ...


class Grid:
    """Every combination, in order."""

    def __init__(self, spec: SearchSpec) -> None:
        self._spec = spec

    def choices(self) -> Iterator[Choice]:
        return islice(self._spec.combinations(), self._spec.trials)

    def tell(self, figures: Mapping[str, float] | None) -> None:
        """The grid does not learn."""


class Random:
    """Each parameter drawn evenly over its dimension, independently, from the search's seed."""

    def __init__(self, spec: SearchSpec) -> None:
        self._spec = spec
        self._draw = random.Random(spec.seed)

    def choices(self) -> Iterator[Choice]:
        for _ in range(self._spec.trials):
            yield {name: dimension.at(self._draw.random()) for name, dimension in self._spec.space.items()}

    def tell(self, figures: Mapping[str, float] | None) -> None:
        """Chance does not learn."""


class Tpe:
    """Optuna's multi-objective tree of Parzen estimators (Ozaki et al., GECCO 2020).

    A choice that reached nothing is told as one that breaks a constraint, so that the estimator keeps away from what
    is like it (Watanabe and Hutter, IJCAI 2023), and is never given again.
    """

    def __init__(self, spec: SearchSpec) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._pruned = optuna.trial.TrialState.PRUNED
        self._spec = spec
        self._ways: dict[str, Way] = objectives(spec)
        self._study = optuna.create_study(
            directions=["minimize" if way == "lower" else "maximize" for way in self._ways.values()],
            sampler=optuna.samplers.TPESampler(seed=spec.seed, n_startup_trials=min(10, max(1, spec.trials // 2))),
        )
        self._asked: Any = None
        self._given: Choice = {}
        self._refused: list[Choice] = []

    def choices(self) -> Iterator[Choice]:
        for _ in range(self._spec.trials):
            for _ in range(MOST_ASKED):
                self._asked = self._study.ask()
                self._given = {
                    name: _suggested(self._asked, name, dimension) for name, dimension in self._spec.space.items()
                }
                if self._given not in self._refused:
                    break
                self._refuse()
            else:
                return  # what is left to propose was refused before
            yield dict(self._given)

    def tell(self, figures: Mapping[str, float] | None) -> None:
        if figures is None or not self._ways.keys() <= figures.keys():
            self._refused.append(self._given)
            self._refuse()
        else:
            self._asked.set_constraint(PLAYABLE, 0.0)
            self._study.tell(self._asked, [figures[name] for name in self._ways])

    def _refuse(self) -> None:
        self._asked.set_constraint(PLAYABLE, 1.0)
        self._study.tell(self._asked, state=self._pruned)


def _suggested(trial: Any, name: str, dimension: Dimension) -> str:
    """Values are categories; a range is searched as the share along it, so that one rule makes it a value."""
    if dimension.values:
        return str(trial.suggest_categorical(name, dimension.values))
    return dimension.at(trial.suggest_float(name, 0.0, 1.0))


SAMPLERS: dict[str, Callable[[SearchSpec], Sampler]] = {"grid": Grid, "random": Random, "tpe": Tpe}
