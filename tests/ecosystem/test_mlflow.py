"""MLflow keeps the classifier, as a scikit-learn model and as a function of Python, and loads it again."""

import numpy as np
import pandas as pd
import pytest

import enkbayes as eb

mlflow = pytest.importorskip("mlflow")
pytestmark = pytest.mark.filterwarnings("ignore")

rng = np.random.default_rng(0)
FRAME = pd.DataFrame(rng.standard_normal((80, 3)), columns=["p", "q", "r"])
Y = np.where(FRAME.p + rng.standard_normal(80) > 0, "yes", "no")


@pytest.fixture
def fitted():
    return eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(FRAME, Y)


def test_the_flavour_of_scikit_learn(fitted, tmp_path):
    import mlflow.sklearn

    trusted = {"serialization_format": "cloudpickle"}
    mlflow.sklearn.save_model(fitted, str(tmp_path / "model"), pyfunc_predict_fn="predict_proba", **trusted)
    again = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    np.testing.assert_allclose(np.asarray(again.predict(FRAME)), fitted.predict_proba(FRAME))


def test_a_function_of_python_that_reads_the_model_file(fitted, tmp_path):
    """The model file is an artifact, so that nothing of the model is a pickle."""

    class Bayes(mlflow.pyfunc.PythonModel):
        def load_context(self, context):
            self.clf = eb.load(context.artifacts["model"])

        def predict(self, context, model_input, params=None):
            uncertainty = self.clf.predict_uncertainty(model_input)
            found = pd.DataFrame(self.clf.predict_proba(model_input), columns=self.clf.classes_)
            return found.assign(epistemic=uncertainty.epistemic)

    fitted.save(tmp_path / "model.safetensors")
    mlflow.pyfunc.save_model(
        str(tmp_path / "kept"), python_model=Bayes(), artifacts={"model": str(tmp_path / "model.safetensors")}
    )
    found = mlflow.pyfunc.load_model(str(tmp_path / "kept")).predict(FRAME)
    np.testing.assert_allclose(found[["no", "yes"]].to_numpy(), fitted.predict_proba(FRAME))
    np.testing.assert_allclose(found.epistemic, fitted.predict_uncertainty(FRAME).epistemic)
