"""Optuna's sampler of ours: proposes what the solver found, best first, each point once.

It draws nothing at random: what is worth measuring next is the solver's to say, from all that was measured so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from fuseplan.study.names import Params

Source = Callable[[], Iterable[Mapping[str, str]]]
"""Gives the points that are worth measuring by what is known now, best first."""

INTERRUPTED = "interrupted"
"""The status of a trial whose point was not looked at to the end, by no fault of its own."""

_Key = frozenset[tuple[str, str]]


class FuseplanSampler(BaseSampler):
    """Proposes the first point of `source` that the study has not seen; its best trial again when there is none.

    The source is asked anew for each trial, since a solver may have looked at the latest measurements.

    >>> import optuna
    >>> sampler = FuseplanSampler({"edge": ("cut", "join")}, lambda: [{"edge": "join"}, {"edge": "cut"}])
    >>> study = optuna.create_study(sampler=sampler)
    >>> [study.ask(sampler.distributions).params for _ in range(2)]
    [{'edge': 'join'}, {'edge': 'cut'}]
    >>> sampler.peek(study) is None
    True
    """

    def __init__(self, parameters: Mapping[str, tuple[str, ...]], source: Source) -> None:
        self.distributions: dict[str, BaseDistribution] = distributions(parameters)
        self._source = source
        self._proposed: set[_Key] = set()
        self._next: Params | None = None

    def peek(self, study: Study) -> Params | None:
        """The point that the next trial will be; None when the study has seen all that the source has."""
        seen = self._proposed | {spelled(trial) for trial in study.get_trials(deepcopy=False) if counts(trial)}
        self._next = next((dict(point) for point in self._source() if frozenset(point.items()) not in seen), None)
        return self._next

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters: a point is proposed as a whole."""
        del study, trial
        return self.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The point that this trial is."""
        del trial, search_space
        point, self._next = self._next or self.peek(study), None
        if point is None:
            done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            return dict(study.best_params) if done else {}
        self._proposed.add(frozenset(point.items()))
        return dict(point)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The first word, for a parameter that an enqueued point or a source has left out."""
        del study, trial
        if not isinstance(param_distribution, CategoricalDistribution):
            raise ValueError(f"fuseplan's sampler proposes words, and {param_name!r} is none")
        return param_distribution.choices[0]


def distributions(parameters: Mapping[str, tuple[str, ...]]) -> dict[str, BaseDistribution]:
    """The parameters as Optuna knows them: categorical, with all their words from the start."""
    return {name: CategoricalDistribution(words) for name, words in parameters.items()}


def counts(trial: FrozenTrial) -> bool:
    """Whether a trial has an answer or will get one: not if it was left running by a run that was killed."""
    return trial.state != TrialState.RUNNING and trial.user_attrs.get("status") != INTERRUPTED


def spelled(trial: FrozenTrial) -> _Key:
    """The point that a trial is, or will be if it waits in the queue."""
    params = {**trial.params, **trial.system_attrs.get("fixed_params", {})}
    return frozenset(params.items())
