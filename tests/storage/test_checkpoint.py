"""Checkpoints: an interrupted run resumes as if nothing had happened, and the file of another run is refused."""

import os
import signal
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import enkbayes as eb
from enkbayes.storage import container
from enkbayes.storage.checkpoint import CheckpointWriter as Writer
from enkbayes.storage.checkpoint import Stopped
from enkbayes.storage.snapshot import KIND, Snapshot, identify

rng = np.random.default_rng(5)
X = rng.standard_normal((120, 4))
SCORE = X @ [1.0, -1.0, 0.5, 0.0] + 0.5 * rng.standard_normal(120)
TWO, THREE = (SCORE > 0).astype(int), np.digitize(SCORE, [-0.7, 0.7])
EXACT = {
    "homotopy": eb.Homotopy(steps=8),
    "homotopy, batches": eb.Homotopy(steps=5, batch=30),
    "tamed": eb.TamedHomotopy(ds=0.1),
    "trotter": eb.TrotterSampler(ds=0.1, max_steps=12),
    "stochastic": eb.StochasticSampler(max_steps=12),
    "fixed tau": eb.Equilibrium(tau=0.2, max_steps=12),
    "batches": eb.Equilibrium(batch=30, max_steps=12),
    "structured": eb.MeanField(rank=2, tol=1e-3),
}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class Cut(Exception):
    """The end of a process."""


def problem(labels=TWO, prior=2.0, features=X):
    return eb.Problem.create(features, labels, prior, intercept=10.0)


def cut_at(step):
    def callback(state):
        if state.steps >= step:
            raise Cut

    return callback


def interrupted(path, asked, sampler, step=2, **settings):
    with pytest.raises(Cut):
        eb.run(asked, sampler, callback=cut_at(step), recorder=Writer(path), **settings)
    assert path.exists()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.safetensors"


@pytest.mark.parametrize("name", EXACT)
def test_a_run_goes_on_exactly(name, path):
    sampler, settings = EXACT[name], {"particles": 30, "seed": 3}
    whole, first = eb.run(problem(), sampler, **settings), []
    interrupted(path, problem(), sampler, step=1, **settings)
    again = eb.run(problem(), sampler, recorder=Writer(path), callback=lambda s: first.append(s.steps), **settings)
    assert first[0] == 1
    assert np.max(np.abs(np.asarray(again.theta) - whole.theta)) < 1e-12
    assert (again.info.steps, again.info.converged, again.info.message, again.gaussian) == (
        whole.info.steps,
        whole.info.converged,
        whole.info.message,
        whole.gaussian,
    )
    assert not path.exists()


@pytest.mark.parametrize("labels", [TWO, THREE], ids=["two classes", "three classes"])
@pytest.mark.parametrize("particles", [60, 4], ids=["many", "few"])
@pytest.mark.parametrize("sampler", [eb.Equilibrium(), eb.MeanField()], ids=["own", "mean field"])
def test_adaptive_runs_resume_with_their_history(path, sampler, particles, labels):
    asked, settings = problem(labels), {"particles": particles, "seed": 1}
    whole = eb.run(asked, sampler, **settings)
    for step in range(1, whole.info.steps, 3):
        interrupted(path, asked, sampler, step=step, **settings)
    again = eb.run(asked, sampler, recorder=Writer(path), **settings)
    assert np.max(np.abs(again.theta - whole.theta)) < 1e-12
    assert again.info.steps == whole.info.steps
    assert again.info.blend == whole.info.blend


@pytest.mark.parametrize("sampler", [eb.Equilibrium(), eb.MeanField(), eb.MeanField(rank=2)], ids=repr)
def test_adaptive_runs_on_torch_resume(path, sampler):
    """Among their arrays are numbers without axes, which are NaN where no energy is computed."""
    torch = pytest.importorskip("torch")
    asked = problem(features=torch.as_tensor(X))
    whole = eb.run(asked, sampler, particles=20)
    for step in range(1, whole.info.steps, 2):
        interrupted(path, asked, sampler, step=step, particles=20)
    again = eb.run(asked, sampler, particles=20, recorder=Writer(path))
    assert torch.max(torch.abs(again.theta - whole.theta)) < 1e-12
    assert again.info.steps == whole.info.steps


@dataclass(frozen=True)
class Mine(eb.Homotopy):
    """A sampler of the user's own, whose control no file knows."""

    def init(self, problem, ensemble, seed):
        return replace(super().init(problem, ensemble, seed), control={"looked at": problem.size})

    def step(self, problem, state):
        assert state.control == {"looked at": 120}
        return super().step(problem, state)


def test_an_unknown_control_is_made_again(path):
    interrupted(path, problem(), Mine(steps=5), particles=20)
    again = eb.run(problem(), Mine(steps=5), particles=20, recorder=Writer(path))
    assert np.array_equal(again.theta, eb.run(problem(), Mine(steps=5), particles=20).theta)


@pytest.mark.parametrize("change", [{"type": "Another"}, {"fields": {"other": 1}}], ids=["type", "fields"])
@pytest.mark.parametrize("particles", [60, 4], ids=["many", "few"])
def test_a_control_of_another_version_is_made_again(path, particles, change):
    whole, steps = eb.run(problem(), particles=particles), []
    interrupted(path, problem(), eb.Equilibrium(), step=3, particles=particles)
    header, tensors = container.read(path, KIND)
    header["control"] |= change
    container.write(path, KIND, header, tensors)
    recorder = Writer(path)
    again = eb.run(problem(), particles=particles, recorder=recorder, callback=lambda s: steps.append(s.steps))
    assert steps[0] >= 3
    assert again.info.converged
    assert np.max(np.abs(again.theta - whole.theta)) < 1e-4


def test_nonlinear_runs_resume(path):
    prior = eb.Gaussian.isotropic(4)
    asked = eb.Problem.nonlinear(lambda theta: np.tanh(X @ theta.T), TWO, prior)
    whole = eb.run(asked, eb.Homotopy(steps=5), particles=20)
    interrupted(path, asked, eb.Homotopy(steps=5), particles=20)
    assert np.array_equal(eb.run(asked, eb.Homotopy(steps=5), particles=20, recorder=Writer(path)).theta, whole.theta)


def test_single_precision_and_torch_resume(path):
    torch = pytest.importorskip("torch")
    asked = problem(features=torch.as_tensor(X, dtype=torch.float32))
    interrupted(path, asked, eb.Homotopy(steps=5), particles=20)
    assert {x.dtype for x in load_file(path).values()} == {np.dtype(np.float32)}
    again = eb.run(asked, eb.Homotopy(steps=5), particles=20, recorder=Writer(path))
    assert torch.equal(again.theta, eb.run(asked, eb.Homotopy(steps=5), particles=20).theta)


def test_a_finished_run_may_be_kept(path):
    kept, seen = Writer(path, keep=True), []
    first = eb.run(problem(), particles=40, recorder=kept)
    again = eb.run(problem(), particles=40, recorder=kept, callback=lambda s: seen.append(s.steps))
    assert np.array_equal(first.theta, again.theta)
    assert seen == [first.info.steps]
    assert again.info.converged
    assert (again.info.residual, again.info.blend) == (first.info.residual, first.info.blend)
    further = eb.run(problem(), eb.Equilibrium(tol=1e-10), state=again.state)
    assert further.info.residual < 1e-10


def test_writes_are_rationed(path):
    eb.run(
        problem(),
        eb.Homotopy(steps=6),
        recorder=Writer(path, every=3600),
        callback=lambda _: path.exists() and pytest.fail("written before its time"),
    )
    written, ticks = [], iter(range(1000))
    writer = Writer(path, every=0, clock=lambda: next(ticks))

    def look(state):
        found = Snapshot.read(path).steps
        if found not in written:
            written.append(found)

    eb.run(problem(), eb.Homotopy(steps=60), particles=20, recorder=writer, callback=look)
    assert written == [0, 20, 40, 60]  # a write takes one tick of the clock, so 20 must pass before the next


def test_sigterm_waits_for_the_step_and_leaves_a_checkpoint(path):
    def cancelled(state):
        if state.steps == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match=r"asked to end; the checkpoint .*run.safetensors holds step 3: the same command"):
        eb.run(problem(), eb.Homotopy(steps=5), callback=cancelled, recorder=Writer(path))
    assert signal.getsignal(signal.SIGTERM) is before
    assert Snapshot.read(path).steps == 3


def test_it_works_in_a_thread_too(path):
    found = []
    thread = threading.Thread(target=lambda: found.append(eb.run(problem(), particles=20, recorder=Writer(path))))
    thread.start()
    thread.join()
    assert found[0].info.converged


OTHERS = {
    "parameters 5; expected 4": {"asked": eb.Problem.create(X, TWO, 2.0)},
    "rows 120; expected 100": {"asked": problem(TWO[:100], features=X[:100])},
    r"likelihood Bernoulli\(\); expected Categorical": {
        "asked": eb.Problem.create(X[:, :1], np.arange(120) % 5, classes=range(5))
    },
    "another prior": {"asked": problem(prior=2.1)},
    "other data": {"asked": problem(features=X + 0.01)},
    "sampler Homotopy; expected Equilibrium": {"sampler": eb.Equilibrium()},
    "sampler Homotopy; expected Homotopy with batch": {"sampler": eb.Homotopy(steps=5, batch=7)},
    r"sampler Homotopy\(steps=5.*; expected Homotopy\(steps=6": {"sampler": eb.Homotopy(steps=6)},
    "seed 0; expected 4": {"seed": 4},
    "particles 20; expected 21": {"particles": 21},
}


@pytest.mark.parametrize("words", OTHERS)
def test_the_file_of_another_run_is_refused(path, words):
    interrupted(path, problem(), eb.Homotopy(steps=5), particles=20)
    settings = {"asked": problem(), "sampler": eb.Homotopy(steps=5), "particles": 20} | OTHERS[words]
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"belongs to another run, with {words}.*; remove the file to start again"):
        eb.run(settings.pop("asked"), settings.pop("sampler"), recorder=Writer(path), **settings)
    assert path.read_bytes() == before


def test_settings_of_the_same_kind_may_change(path):
    interrupted(path, problem(), eb.Equilibrium(max_steps=3), particles=20)
    assert eb.run(problem(), eb.Equilibrium(max_steps=50), particles=20, recorder=Writer(path)).info.converged


def nested(depth):
    return [nested(depth - 1)] if depth else []


def damage(path, how):
    if how == "cut off":
        path.write_bytes(path.read_bytes()[:-40])
    elif how == "a model":
        eb.save(eb.run(problem(), particles=20), path)
    elif how == "changed":
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
    else:
        header, tensors = container.read(path, KIND)
        REWRITES[how](header, tensors)
        container.write(path, KIND, header, tensors)


REWRITES = {
    "later": lambda header, _: header.update(format=3),
    "without steps": lambda header, _: header.pop("steps"),
    "without points": lambda _, tensors: tensors.pop("ensemble.points"),
    "foreign": lambda header, _: header["state"].update(type="os.system"),
    "no arrays": lambda header, _: header["state"]["fields"]["ensemble"]["fields"].update(mean="mean"),
    "no counter": lambda header, _: header["state"]["fields"].update(steps="three"),
    "another shape": lambda _, tensors: tensors.update({"ensemble.mean": np.zeros(7)}),
    "nested": lambda header, _: header["state"]["fields"].update(message=nested(300)),
    "not finite": lambda _, tensors: tensors["ensemble.basis"].fill(np.nan),
}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut off", "damaged or not a safetensors file"),
        ("a model", r"holds a model, which enkbayes.load\(path\) reads, and not the checkpoint of a run"),
        ("changed", "checksum"),
        ("later", "format 3, written by .*; this version reads up to 2, so upgrade enkbayes"),
        ("without steps", "header is not readable"),
        ("without points", "the tensor ensemble.points of the field points is missing"),
        ("not finite", "the tensor ensemble.basis of the field basis is missing, or contains NaN"),
        ("foreign", "the field state is a os.system, which is unknown"),
        ("no arrays", "an ensemble without arrays"),
        ("nested", "is damaged"),
        ("no counter", "the field steps is 'three'; expected int"),
        ("another shape", r"mean \(7,\).*; expected \(5,\)"),
    ],
)
def test_a_damaged_file_is_refused(path, how, words):
    interrupted(path, problem(), eb.Homotopy(steps=5), particles=20)
    damage(path, how)
    with pytest.raises(ValueError, match=words):
        eb.run(problem(), eb.Homotopy(steps=5), particles=20, recorder=Writer(path))


def test_nothing_of_a_file_is_executed(path):
    save_file({"mean": np.zeros(2)}, path, metadata={KIND.name: "__import__('os').abort()", "sha256": ""})
    with pytest.raises(ValueError, match="not readable"):
        eb.run(problem(), recorder=Writer(path))


def test_a_checkpoint_needs_a_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist; create it"):
        eb.run(problem(), recorder=Writer(tmp_path / "nowhere" / "run.safetensors"))


def test_two_writers_leave_a_whole_file(path):
    asked = problem()
    states = list(eb.iterate(asked, eb.Homotopy(steps=6), particles=50))
    writers = [Writer(path, every=0, share=np.inf, keep=True) for _ in range(2)]

    def record(writer):
        writer.resume(asked, eb.Homotopy(steps=6))
        with writer:
            for state in states:
                writer(state)

    threads = [threading.Thread(target=record, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for _ in range(20):
        if path.exists():
            assert 0 <= Snapshot.read(path).steps <= 6
    for thread in threads:
        thread.join()
    assert Snapshot.read(path).steps == 6
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_identity_does_not_depend_on_the_order_of_sums():
    one, other = identify(problem()), identify(eb.Problem.create(X, TWO, 2.0, intercept=10.0, chunk=7))
    assert one["prior"] == other["prior"]
    assert np.allclose(one["data"], other["data"], rtol=1e-13)


def test_a_classifier_goes_on(path):
    clf = eb.EnsembleClassifier(particles=30, random_state=2, prior_precision="auto", sampler="homotopy")
    whole = clf.fit(X, THREE).posterior_.theta
    problem_, seed = clf.problem_, 2
    interrupted(path, problem_, eb.Homotopy(), step=5, particles=30, seed=seed)
    assert np.array_equal(clf.fit(X, THREE, checkpoint=path).posterior_.theta, whole)
    assert not path.exists()


def test_the_trace_of_a_resumed_run_has_the_steps_before(tmp_path):
    problem, sampler = eb.Problem.create(X, TWO), eb.Homotopy(steps=8)

    def cut(state):
        if state.steps == 4:
            raise KeyboardInterrupt

    whole = eb.run(problem, sampler, particles=30)
    with pytest.raises(KeyboardInterrupt):
        eb.run(problem, sampler, particles=30, callback=cut, recorder=Writer(tmp_path / "run.safetensors"))
    again = eb.run(problem, sampler, particles=30, recorder=Writer(tmp_path / "run.safetensors"))
    assert [entry[0] for entry in again.info.trace] == list(range(9))
    np.testing.assert_array_equal(np.asarray(again.info.trace), np.asarray(whole.info.trace))
