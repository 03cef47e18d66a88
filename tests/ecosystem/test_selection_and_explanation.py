"""Feature selection of scikit-learn and explanations of SHAP take the classifier as they take LogisticRegression."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.feature_selection import RFE, RFECV, SelectFromModel
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

import enkbayes as eb

X, Y = load_breast_cancer(return_X_y=True)
X, Y = scale(X[:200, :6]), Y[:200]
CLF = eb.EnsembleClassifier(prior_precision=1.0, random_state=0)


def test_recursive_elimination_and_selection():
    ours, theirs = (RFE(each, n_features_to_select=3).fit(X, Y) for each in (CLF, LogisticRegression(C=1.0)))
    np.testing.assert_array_equal(ours.support_, theirs.support_)
    assert RFECV(CLF, cv=2, step=2).fit(X, Y).n_features_ >= 1
    chosen, others = (SelectFromModel(each).fit(X, Y) for each in (CLF, LogisticRegression(C=1.0)))
    np.testing.assert_array_equal(chosen.get_support(), others.get_support())
    pipe = make_pipeline(StandardScaler(), SelectFromModel(CLF), CLF).fit(X, Y)
    assert pipe.score(X, Y) > 0.85


@pytest.mark.filterwarnings("ignore")
def test_linear_explainer():
    shap = pytest.importorskip("shap")
    clf = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, Y)
    background = shap.maskers.Independent(X, max_samples=len(X))
    values = np.asarray(shap.LinearExplainer(clf, background).shap_values(X))
    assert values.shape == X.shape
    # a linear model with independent features has w (x - mean)
    np.testing.assert_allclose(values, clf.coef_[0] * (X - X.mean(axis=0)), atol=1e-6)
    three = eb.EnsembleClassifier(prior_precision=1.0, random_state=0).fit(X, np.digitize(X[:, 0], [-0.5, 0.5]))
    values = np.asarray(shap.LinearExplainer(three, background).shap_values(X))
    np.testing.assert_allclose(values, np.einsum("nd,kd->ndk", X - X.mean(axis=0), three.coef_), atol=1e-6)
