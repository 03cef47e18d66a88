"""Cases that `make fuzz` once found to break the rules, each minimised and named."""

import pytest

from fuzz.campaign import outcome

FOUND = {
    "a sampler that is a class": ("estimator", {"seed": 0, "sampler": "class"}, "refused"),
    "a sampler that is a number": ("estimator", {"seed": 0, "sampler": "3"}, "refused"),
    "particles in quotes": ("estimator", {"seed": 0, "particles": "'5'"}, "refused"),
    "no number of particles": ("estimator", {"seed": 0, "particles": "None"}, "refused"),
    "an intercept without precision": ("estimator", {"seed": 0, "intercept_precision": "None"}, "refused"),
    "a complex precision": ("estimator", {"seed": 0, "prior_precision": "1j"}, "refused"),
    "a precision without inverse": ("estimator", {"seed": 0, "prior_precision": "5e-324"}, "refused"),
    "a precision of 1e300": ("estimator", {"seed": 0, "prior_precision": "1e+300"}, "refused"),
    "a precision beyond floats": ("estimator", {"seed": 0, "prior_precision": str(10**400)}, "refused"),
    "a missing class": ("estimator", {"seed": 0, "first": "partial_fit with a None"}, "refused"),
    "a spread that underflows": ("estimator", {"seed": 0, "X": "tiny"}, None),
    "a column of text in a frame": ("estimator", {"seed": 0, "X": "frame with text"}, "refused"),
    "two columns of one name in a frame": ("estimator", {"seed": 0, "X": "frame with a name twice"}, "refused"),
    "a pool in a sparse format without rows": (
        "estimator",
        {"seed": 0, "X": "sparse dia", "asked": "acquire"},
        "valid",
    ),
    "labels that drift": ("estimator", {"seed": 1, "y": "multi-hot", "second": "forget auto"}, "valid"),
    "nullable labels": ("estimator", {"seed": 1, "y": "nullable multi-hot"}, "valid"),
    "labels of different lengths": ("estimator", {"seed": 0, "y": "lists of labels"}, "refused"),
    "a view of one row": ("networks", {"seed": 0, "held_out": "one batch", "views": "one row"}, "refused"),
    "a view that is no function": ("networks", {"seed": 0, "held_out": "one batch", "views": "text"}, "refused"),
    "half a view": ("networks", {"seed": 0, "held_out": "one batch", "views": "noise", "most_views": "2.5"}, "refused"),
    "half precision by autocast": ("networks", {"seed": 0, "held_out": "one batch", "also": "autocast"}, "valid"),
    "a calibrated network in bfloat16": (
        "networks",
        {"seed": 0, "model": "bfloat16", "held_out": "one batch"},
        "valid",
    ),
    "columns with decimal commas": ("command", {"seed": 1, "column": "decimal commas"}, "refused"),
    "text and numbers as labels": ("estimator", {"seed": 0, "y": "numbers and text"}, "refused"),
    "weights as objects": ("estimator", {"seed": 0, "weight": "objects"}, "valid"),
    "huge weights": ("estimator", {"seed": 0, "weight": "huge"}, "refused"),
    "features next to infinity": ("estimator", {"seed": 0, "X": "largest"}, "refused"),
    "an outlier and a softmax": ("estimator", {"seed": 0, "X": "outlier", "y": "plain"}, None),
    "far features, stochastic": (
        "estimator",
        {"seed": 0, "X": "far away", "fit_intercept": "False", "sampler": "stochastic"},
        None,
    ),
    "far features, trotter": (
        "estimator",
        {"seed": 0, "X": "far away", "fit_intercept": "False", "sampler": "trotter"},
        None,
    ),
    "held-out rows of another size": ("estimator", {"seed": 0, "X": "huge", "held_out": "one"}, "refused"),
    "a warm start from an average": ("estimator", {"seed": 0, "second": "set_params"}, "valid"),
    "groups without names": ("estimator", {"seed": 0, "prior_groups": "None"}, "refused"),
    "a regressor with a long seed": (
        "estimator",
        {"seed": 0, "kind": "regressor", "random_state": "1180591620717411303424"},
        None,
    ),
    "a regressor with a huge prior mean": (
        "estimator",
        {"seed": 0, "prior_mean": "1e+300", "kind": "regressor", "prior_precision": "1e+150"},
        "refused",
    ),
    "a network with one label": ("networks", {"seed": 0, "outputs": "1", "kind": "network", "task": "labels"}, "valid"),
    "several labels with a precision that is text": (
        "networks",
        {"seed": 0, "intercept_precision": "'auto'", "task": "labels"},
        "refused",
    ),
    "a regressor with text": ("estimator", {"seed": 0, "kind": "regressor", "y": "text"}, "refused"),
    "an average over few rows without an intercept": (
        "estimator",
        {"seed": 0, "weight": "one row", "fit_intercept": "False"},
        None,
    ),
    "fewer rows than features without an intercept": (
        "estimator",
        {"seed": 0, "X": "wide", "fit_intercept": "False"},
        "valid",
    ),
    "weights of a mixture that are text": ("core", {"seed": 0, "mixture": "text"}, "refused"),
    "a likelihood that is text": ("core", {"seed": 0, "likelihood": "text"}, "refused"),
    "a likelihood that is a class": ("core", {"seed": 0, "likelihood": "class"}, "refused"),
    "cutpoints that are text": ("core", {"seed": 0, "likelihood": "Ordinal 'x'"}, "refused"),
    "a variance that is text": ("core", {"seed": 0, "likelihood": "Normal 'x'"}, "refused"),
    "particles all but equal": ("core", {"seed": 0, "theta": "tiny"}, None),
    "particles for another prior": ("core", {"seed": 0, "theta": "tiny", "particles": "-1", "y": "plain"}, None),
    "a step of 1e300": ("core", {"seed": 0, "sampler": "TrotterSampler ds 1e+300"}, None),
    "a step of 1e300 in torch": (
        "core",
        {"seed": 0, "library": "torch float32", "sampler": "TrotterSampler ds 1e+300"},
        None,
    ),
    "a long noise step with the strict array library": (
        "core",
        {"seed": 0, "sampler": "StochasticSampler ds 1e+300", "library": "strict"},
        None,
    ),
    "half precision, which the strict array library lacks": (
        "core",
        {"seed": 0, "X": "float16", "library": "strict"},
        "valid",
    ),
    "dates beside classes that are numbers": ("core", {"seed": 0, "classes": "three", "y": "dates"}, "refused"),
    "objects where an array of torch is asked for": (
        "core",
        {"seed": 0, "X": "mixed objects", "library": "torch half"},
        "refused",
    ),
    "dates where an array of torch is asked for": (
        "core",
        {"seed": 0, "X": "dates", "library": "torch float32"},
        "refused",
    ),
    "held-out rows of the largest numbers": (
        "estimator",
        {"seed": 0, "X": "largest", "held_out": "training"},
        "refused",
    ),
    "missing labels in a first batch with classes": (
        "estimator",
        {"seed": 0, "first": "partial_fit with classes", "y": "with None"},
        "refused",
    ),
    "features of 1e150 with weights": (
        "estimator",
        {"seed": 217, "X": "huge", "weight": "large", "intercept_precision": "'auto'"},
        None,
    ),
    "rows whose leverage overflows": ("estimator", {"seed": 0, "rows": "huge", "far_field": "True"}, "refused"),
    "chunks of half a row": ("core", {"seed": 0, "chunk": "nan"}, "refused"),
    "rows of different lengths": ("core", {"seed": 0, "X": "ragged"}, "refused"),
    "a stream with a number of classes": ("core", {"seed": 0, "source": "stream", "classes": "number"}, "refused"),
    "a truth value as a step": ("core", {"seed": 0, "sampler": "Equilibrium tau True"}, "refused"),
    "held-out inputs that are text": (
        "networks",
        {"seed": 0, "held_out": "one batch", "held_out x": "text"},
        "refused",
    ),
    "held-out inputs with another axis": (
        "networks",
        {"seed": 0, "held_out": "one batch", "held_out x": "cube"},
        "refused",
    ),
    "no position for the logits": ("networks", {"seed": 0, "output": "9"}, "refused"),
    "a head with a sampler's class": ("networks", {"seed": 0, "sampler": "class"}, "refused"),
    "inputs in an array": ("networks", {"seed": 0, "x": "numpy"}, "refused"),
    "inputs in a list": ("networks", {"seed": 0, "x": "list"}, "refused"),
    "inputs in double precision": ("networks", {"seed": 0, "x": "double"}, "refused"),
    "features by a function": ("networks", {"seed": 0, "features": "lambda"}, "refused"),
    "features of a user that the layer does not take": (
        "networks",
        {"seed": 0, "loader": "one row at a time", "layer": "last", "features": "method"},
        "refused",
    ),
    "a position in the tensor that a model returns": (
        "networks",
        {"seed": 0, "outputs": "2", "output": "0", "loader": "one row at a time", "held_out": "one row at a time"},
        "refused",
    ),
    "batches without rows": ("networks", {"seed": 0, "x": "no rows", "held_out": "strange keys"}, "refused"),
    "features that are text": ("networks", {"seed": 0, "features": "text"}, "refused"),
    "rows that are NaN": ("networks", {"seed": 0, "rows of": "nan"}, "refused"),
    "a precision in a list": ("networks", {"seed": 0, "prior_precision": "[1.0]"}, "refused"),
    "a network with a precision of 1e300": (
        "networks",
        {"seed": 0, "kind": "network", "prior_precision": "1e+300"},
        "refused",
    ),
    "half a particle": ("networks", {"seed": 0, "kind": "network", "particles": "2.5"}, "refused"),
    "a scripted model": ("networks", {"seed": 0, "model": "scripted"}, "refused"),
    "a lazy model": ("networks", {"seed": 0, "model": "lazy"}, "refused"),
    "weight normalisation": ("networks", {"seed": 0, "model": "weight norm"}, "valid"),
    "no loader": ("networks", {"seed": 0, "loader": "none"}, "refused"),
    "groups that are missing": ("estimator", {"seed": 1, "prior_groups": "nan"}, "refused"),
    "a switch in words": ("estimator", {"seed": 1, "fit_intercept": "'no'"}, "refused"),
    "lists of labels for a problem": ("core", {"seed": 0, "y": "lists of labels"}, "refused"),
    "classes in an array of objects": ("core", {"seed": 0, "y": "objects", "likelihood": "Categorical"}, "valid"),
    "classes beyond 64 bits": ("core", {"seed": 0, "y": "big integers", "likelihood": "Categorical"}, "refused"),
    "a seed in quotes": ("networks", {"seed": 0, "kind": "network", "run seed": "x"}, "refused"),
}


@pytest.mark.parametrize("name", FOUND)
def test_once_broken(name):
    area, case, expected = FOUND[name]
    if area == "networks" or "torch" in case.get("library", ""):
        pytest.importorskip("torch")
    found = outcome(area, case)
    assert found == expected if expected else not found.startswith("broken"), found
