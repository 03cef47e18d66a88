# `make demo` and `make test` create .venv, install the package and run. A fresh machine needs nothing else.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := pyproject.toml constraints.txt
APT := $(if $(filter-out 0,$(shell id -u)),sudo -n) env DEBIAN_FRONTEND=noninteractive apt-get -qq

.PHONY: demo test audit docs links gallery test-ecosystem test-arviz-1 test-bambi test-browser fuzz fuzz-files faults test-oldest test-newest bench bench-speed bench-usefulness bench-defaults bench-detectors bench-acquisition bench-images bench-pretrained dist clean test-dist typed

demo: .venv/.demo
	$(BIN)/enkbayes demo --out demo

test: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/repo-review .
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses 2 --dist loadfile  # one BLAS thread per worker

docs: .venv/.test  # builds the site into docs/_build/html; a warning is an error
	rm -rf docs/_build docs/api/generated docs/gallery  # pages that have moved, and pictures of older code
	$(BIN)/python docs/api/write_pages.py
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html docs docs/_build/html

links: .venv/.test  # follows every link to another site, which needs a network; `make test` checks those within
	$(BIN)/python -m sphinx --quiet --define plot_gallery=0 -b linkcheck docs docs/_build/links

gallery: .venv/.test .venv/.benchmarks  # draws the three examples that need downloads or libraries
	MPLBACKEND=agg $(BIN)/python examples/guide/imagenet_500_labels.py
	MPLBACKEND=agg $(BIN)/python examples/guide/spam_embeddings.py
	MPLBACKEND=agg $(BIN)/python examples/guide/hugging_face.py

FUZZ_CASES ?= 20000
fuzz: .venv/.test  # random hostile cases, about an hour; an interrupted campaign goes on where it was
	PYTHONPATH=tests:benchmarks OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/fuzz/campaign.py --cases $(FUZZ_CASES)

test-browser: .venv/.test .venv/.browser  # opens the report of `make test` and the site of `make docs` in a browser
	$(BIN)/python -m pytest --quiet tests/browser

test-ecosystem: .venv-ecosystem/.ready  # workflows with other libraries, in an environment of their own
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .venv-ecosystem/bin/python -m pytest --quiet tests/ecosystem
	$(if $(NEWER),$(MAKE) --no-print-directory test-arviz-1,@echo "ArviZ 1.x needs Python 3.12, which is not here: only its parts were tested")

# a Python that ArviZ 1.x runs on, if there is one
NEWER = $(firstword $(foreach p,python3.12 python3.13 python3.14 $(wildcard $(HOME)/.pyenv/versions/3.1[234].*/bin/python3),\
  $(shell $(p) -c 'print("$(p)")' 2>/dev/null)))
test-arviz-1: .venv-arviz/.ready
	PYTHONPATH=src OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .venv-arviz/bin/python -m pytest --quiet tests/ecosystem/test_arviz_1.py

test-bambi: .venv-bambi/.ready  # the page for users of bambi, which needs an older matplotlib; half a minute
	PYTHONPATH=src OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .venv-bambi/bin/python -m pytest --quiet \
	  tests/ecosystem/test_coming_from.py -k bambi

bench: .venv/.test .venv-peers/.ready  # all benchmarks except usefulness and defaults; one to two hours on an idle machine
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/profile_step.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/streaming.py
	$(BIN)/python benchmarks/big_heads.py
	$(BIN)/python benchmarks/head_speed.py
	$(BIN)/python benchmarks/speed_page.py
	$(BIN)/python benchmarks/step_control.py
	$(BIN)/python benchmarks/sequential.py
	$(BIN)/python benchmarks/predictive.py
	$(BIN)/python benchmarks/informed.py
	$(BIN)/python benchmarks/doc_tables.py
	$(BIN)/python benchmarks/empirical_bayes.py
	$(BIN)/python benchmarks/prior_search.py
	$(BIN)/python benchmarks/sbc.py
	$(BIN)/python benchmarks/compare_real.py

bench-speed: .venv/.test .venv-peers/.ready  # the ratios of docs/results/speed.md only; half an hour
	$(BIN)/python benchmarks/speed.py

bench-usefulness: .venv/.test  # stores trained networks and results, so an interrupted run resumes
	$(BIN)/python benchmarks/useful_choices.py
	$(BIN)/python benchmarks/useful_scores.py
	$(BIN)/python benchmarks/usefulness.py

VERSIONS := tests/core tests/engine tests/solvers tests/samplers tests/inference tests/storage tests/estimators tests/cli
WITHOUT_TORCH := numpy scipy scikit-learn threadpoolctl array-api-compat safetensors typer rich pyarrow \
  pandas matplotlib jinja2 pytest hypothesis
WORKERS := --doctest-ignore-import-errors  # the scripts of several processes need PyTorch
test-oldest:  # tests the oldest supported versions, in an environment of their own, without PyTorch
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --constraint oldest.txt \
	  $(WITHOUT_TORCH)
	SCIPY_ARRAY_API=1 PYTHONPATH=$(CURDIR)/src OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .venv-oldest/bin/python -m pytest --quiet \
	  $(WORKERS) $(VERSIONS)

test-newest:  # tests the newest versions, in an environment of their own, without PyTorch
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade $(WITHOUT_TORCH)
	PYTHONPATH=$(CURDIR)/src OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .venv-newest/bin/python -m pytest --quiet $(WORKERS) $(VERSIONS)

bench-defaults: .venv/.test .venv/.benchmarks  # downloads 36 data sets; resumes, about an hour on one core
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/defaults.py --sets evaluation

bench-detectors: .venv/.test .venv/.benchmarks .venv-peers/.ready  # scores against those of pytorch-ood; resumes, hours
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/detectors.py --development --only scores
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/detectors.py --development --only peers
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/detector_ideas.py
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/detectors.py

bench-acquisition: .venv/.test .venv/.benchmarks  # which rows to label; resumes, ten minutes on one core
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/acquisition.py

bench-images: .venv/.test .venv/.benchmarks  # trains five networks for CIFAR-10, ten minutes of a core each, and measures; resumes
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/image_forms.py
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/image_networks.py

bench-pretrained: .venv/.test .venv/.benchmarks .venv-peers/.ready  # few labels on features of two networks; resumes
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/pretrained.py

dist: .venv/bin/python  # builds wheel and sdist and checks them
	$(INSTALL) build twine
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

test-dist: dist  # installs the wheel without extras into clean environments of all Pythons that are here, and tests it
	bash tests/clean_install.sh dist/*.whl $(VERSIONS)

typed: .venv/.test  # at least 95 % of the public interface has known types; needs node
	$(INSTALL) pyright
	mkdir -p build
	cd docs && PATH="$(CURDIR)/$(BIN):$$PATH" pyright --ignoreexternal --outputjson --verifytypes enkbayes > ../build/types.json || true
	$(BIN)/python -c "import json, pathlib, sys; \
	  known = json.loads(pathlib.Path('build/types.json').read_text())['typeCompleteness']['completenessScore']; \
	  print(f'{known:.1%} of the public interface has known types'); sys.exit(known < 0.95)"

audit: .venv-audit/.ready  # insecure code, and known vulnerabilities of the pinned packages; needs the internet
	.venv-audit/bin/bandit --quiet --recursive src --severity-level medium
	.venv-audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

faults: .venv/.test  # kills processes and fails disks; stores every case, so an interrupted run resumes
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 nice -n 19 $(BIN)/python benchmarks/faults.py

fuzz-files: .venv/.test  # reads 20,000 damaged files; stores every batch, so an interrupted run resumes
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 nice -n 19 $(BIN)/python benchmarks/fuzz_files.py

clean:
	rm -rf .venv .venv-* demo dist docs/_build docs/api/generated docs/gallery build .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: $(SOURCES) | .venv/bin/python
	@echo "Installing enkbayes into .venv (only once, takes a minute or two) ..."
	$(INSTALL) --editable '.[torch,plots]'
	@touch $@

.venv/.test: $(SOURCES) | .venv/bin/python
	@echo "Installing enkbayes and its test dependencies into .venv (only once, takes a few minutes) ..."
	$(INSTALL) torch --editable '.[all,dev]'
	@touch $@ .venv/.demo

.venv/.browser: $(SOURCES) | .venv/.test
	@echo "Installing the dependencies of the browser tests ..."
	$(INSTALL) --editable '.[browser]'
	@command -v chromium >/dev/null || { $(APT) update && $(APT) install -y chromium; } >/dev/null 2>&1 || \
	  { echo "The browser tests need chromium, which could not be installed here; install it and run make test-browser again." >&2; exit 1; }
	@touch $@

.venv/.benchmarks: $(SOURCES) | .venv/.test
	@echo "Installing what reads the data sets of the benchmarks ..."
	$(INSTALL) --editable '.[benchmarks]'
	@touch $@

.venv-ecosystem/.ready: $(SOURCES) | .venv/.test  # finds in .venv what is there, so that PyTorch is installed once
	@echo "Installing the libraries of the ecosystem tests into .venv-ecosystem (only once, takes a few minutes) ..."
	$(PYTHON) -m venv .venv-ecosystem
	$(BIN)/python -c "import site; print(f'import site; site.addsitedir({site.getsitepackages()[0]!r})')" \
	  > $$(.venv-ecosystem/bin/python -c "import site; print(site.getsitepackages()[0])")/zz_venv.pth
	.venv-ecosystem/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  --editable '.[ecosystem]'
	@touch $@

.venv-audit/.ready: constraints.txt
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check bandit pip-audit
	@touch $@

.venv-arviz/.ready: constraints.txt
	@echo "Installing ArviZ 1.x into .venv-arviz (only once, takes a minute) ..."
	$(NEWER) -m venv .venv-arviz
	grep -v ^arviz constraints.txt > .venv-arviz/constraints.txt
	.venv-arviz/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: \
	  --constraint .venv-arviz/constraints.txt arviz==1.3.0 arviz-base==1.3.1 arviz-plots==1.3.2 arviz-stats==1.3.3 \
	  matplotlib numpy scipy scikit-learn threadpoolctl array-api-compat safetensors typer pytest
	@touch $@

.venv-bambi/.ready: constraints.txt
	@echo "Installing bambi and PyMC into .venv-bambi (only once, takes a minute) ..."
	$(PYTHON) -m venv .venv-bambi
	grep -v ^matplotlib constraints.txt > .venv-bambi/constraints.txt
	.venv-bambi/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: \
	  --constraint .venv-bambi/constraints.txt bambi==0.17.2 'matplotlib<3.11' \
	  numpy scipy scikit-learn threadpoolctl array-api-compat safetensors typer rich pytest hypothesis
	@touch $@

.venv-peers/.ready: constraints.txt  # other libraries, in an environment separate from the package's own
	@echo "Installing the libraries for comparison into .venv-peers (only once, takes a few minutes) ..."
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  torch laplace-torch==0.3 scikit-learn numpyro array-api-compat safetensors typer pytest
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps pytorch-ood==0.4.0
	.venv-peers/bin/python -m pip uninstall --quiet --yes torchvision  # built for another torch, and not needed
	@touch $@
