"""Recorders: any object that follows the protocol can record a run and resume it."""

from dataclasses import dataclass, field

import numpy as np
import pytest

import enkbayes as eb

X = np.random.default_rng(0).standard_normal((40, 2))
PROBLEM = eb.Problem.create(X, X[:, 0] > 0)


@dataclass
class Memory:
    """Keeps the states of a run in memory."""

    states: list = field(default_factory=list)
    calls: list = field(default_factory=list)

    def resume(self, problem, sampler, *, seed, particles):
        self.calls.append((sampler, seed, particles))
        return self.states[-1] if self.states else None

    def __enter__(self):
        self.calls.append("enter")

    def __call__(self, state):
        self.states.append(state)

    def __exit__(self, kind, error, trace):
        self.calls.append(kind)


def test_a_recorder_receives_every_state_and_the_end():
    memory, sampler = Memory(), eb.Homotopy(steps=4)
    eb.run(PROBLEM, sampler, particles=20, seed=7, recorder=memory)
    assert [state.steps for state in memory.states] == [0, 1, 2, 3, 4]
    assert memory.calls == [(sampler, 7, 20), "enter", None]


def test_a_run_resumes_from_what_its_recorder_returns():
    memory, sampler = Memory(), eb.Homotopy(steps=4)
    whole = eb.run(PROBLEM, sampler, particles=20)

    def stop(state):
        if state.steps == 2:
            raise KeyError

    with pytest.raises(KeyError):
        eb.run(PROBLEM, sampler, particles=20, recorder=memory, callback=stop)
    assert memory.calls[-1] is KeyError
    again = eb.run(PROBLEM, sampler, particles=20, recorder=memory)
    assert [state.steps for state in memory.states] == [0, 1, 2, 2, 3, 4]
    np.testing.assert_array_equal(again.theta, whole.theta)


def test_the_size_of_the_ensemble_is_that_of_given_particles_and_free_with_a_given_state():
    memory = Memory()
    state = eb.run(PROBLEM, particles=20).state
    eb.run(PROBLEM, theta=np.random.default_rng(0).standard_normal((30, 2)), recorder=memory)
    eb.run(PROBLEM, state=state, recorder=Memory(calls=memory.calls))
    assert [call[2] for call in memory.calls if isinstance(call, tuple)] == [30, None]
