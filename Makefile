# Each target works on a fresh clone: it makes .venv first.
PY := .venv/bin/python
.PHONY: install demo tour docs notebooks smoke test sweeps coverage lint bench gpu tables \
	plans mutants lowest lowest-torch

# Containers often set it. Each process that a test starts would then compile dphead anew.
export PYTHONDONTWRITEBYTECODE :=

.venv/.ready: pyproject.toml setup.py $(wildcard dphead/sums/kernels/*.[ch])
	test -x $(PY) || python3 -m venv .venv
	$(PY) -m pip install --quiet --editable '.[extract,dev]'
	touch .venv/.ready

install: .venv/.ready

demo: install
	$(PY) -m benchmarks demo

tour: install
	$(PY) -m benchmarks tour

docs: install
	$(PY) -m pip install --quiet --editable '.[docs]'
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) -m mkdocs build --strict --quiet

# Runs the notebooks and stores what they print.
notebooks: install
	$(PY) -m pip install --quiet --editable '.[docs]'
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) -m jupyter nbconvert --to notebook --execute \
		--inplace --ClearMetadataPreprocessor.enabled=True docs/notebooks/*.ipynb

smoke:
	python3 -m venv --clear build/smoke
	build/smoke/bin/pip install --quiet .
	cd / && $(CURDIR)/build/smoke/bin/python $(CURDIR)/tests/smoke.py

test: install
	$(PY) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

# The tests of tests/slow.txt, which take longer than all others, and tests of random
# examples, with four times as many of them.
sweeps: install
	HYPOTHESIS_PROFILE=sweep $(PY) -m pytest --numprocesses 2 --dist loadfile \
		-m "slow or hypothesis"

# Prints the share of lines that the tests run. Python 3.12 or newer is fastest.
coverage: install
	$(PY) -m pip install --quiet pytest-cov
	COVERAGE_CORE=sysmon $(PY) -m pytest --numprocesses 2 --dist loadfile --cov --cov-report term

lint: install
	$(PY) -m ruff check --no-cache .
	$(PY) -m ruff format --no-cache --check .
	$(PY) -m pyright
	$(PY) -m mypy --follow-imports=silent --cache-dir .venv/mypy \
		tests/estimators/user_script.py
	.venv/bin/lint-imports --no-cache

bench: install
	$(PY) -m pip install --quiet --editable '.[bench]'
	$(PY) -m benchmarks peers
	$(PY) -m benchmarks scale $(or $(FOLDER),/tmp)
	$(PY) -m benchmarks extraction scattering
	$(PY) -m benchmarks extraction loader photographs

# On a machine with an accelerator.
gpu: install
	$(PY) -m pip install --quiet --editable '.[cuda,bench]'
	$(PY) -m benchmarks gpu

tables: install
	$(PY) -m benchmarks tables

# Plans every job of the papers' numbers, without data.
plans: install
	$(PY) -m benchmarks plans

mutants: install
	PYTHONPATH=tests $(PY) -m seeded_defects

# The lowest versions that pyproject.toml allows, in a virtual environment of their own, and
# tests that need no network of images.
LOWEST := .lowest/bin/python
lowest:
	python3 -m venv --clear .lowest
	python3 tests/lowest.py > .lowest/constraints.txt
	$(LOWEST) -m pip install --quiet --constraint .lowest/constraints.txt . \
		pytest pytest-xdist hypothesis
	cd .lowest && ../$(LOWEST) -m pytest --numprocesses 2 --rootdir .. -c ../pyproject.toml \
		../tests/privacy/ledger/test_ledger.py ../tests/privacy/test_release.py ../tests/data \
		../tests/solvers ../tests/sums ../tests/fit/test_run.py \
		../tests/fit/test_processes.py

# Networks of images at their lowest versions, in the same environment.
lowest-torch: lowest
	$(LOWEST) -m pip install --quiet --constraint .lowest/constraints.txt '.[extract]'
	cd .lowest && ../$(LOWEST) -m pytest --numprocesses 2 --rootdir .. -c ../pyproject.toml \
		../tests/finetune ../tests/extract
