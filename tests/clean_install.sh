#!/usr/bin/env bash
# Install a wheel without extras into a clean environment of each Python that is found; try it; run the tests that need
# no PyTorch (but pandas). Usage: clean_install.sh WHEEL TESTS...
set -euo pipefail
wheel=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tested=0
for version in ${VERSIONS_OF_PYTHON:-3.11 3.12 3.13}; do
  for python in "python$version" "$HOME/.pyenv/versions/$version".*/bin/python; do
    "$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null && break || python=
  done
  if [ -z "$python" ]; then
    echo "Python $version: not found here, not tested"
    continue
  fi
  clean=$folder/$version
  "$python" -m venv "$clean"
  "$clean/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "$wheel"
  (
    cd "$folder"
    "$clean/bin/enkbayes" --version
    "$clean/bin/python" -c "
import numpy as np, sys
from sklearn.datasets import load_iris
from enkbayes import EnsembleClassifier
X, y = load_iris(return_X_y=True)
clf = EnsembleClassifier(random_state=0).fit(X, y)
assert clf.score(X, y) > 0.95 and 'torch' not in sys.modules
np.savetxt('iris.csv', np.c_[X, y], delimiter=',', header='a,b,c,d,kind', comments='')
"
    "$clean/bin/enkbayes" fit iris.csv --target kind --out iris.safetensors --quiet
    "$clean/bin/enkbayes" predict iris.safetensors iris.csv --out decided.csv --quiet
    test "$(wc -l < decided.csv)" -eq 151
  )
  "$clean/bin/python" -m pip install --quiet --disable-pip-version-check pytest hypothesis pandas
  OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 "$clean/bin/python" -m pytest --quiet -p no:cacheprovider \
    --doctest-ignore-import-errors "$@"
  echo "Python $version: import, classifier, command and tests work without extras"
  tested=$((tested + 1))
done
test "$tested" -gt 0
