# make demo and make test need only Python 3.11 or newer and make; what they install stays in .venv and .wheels, so both
# work offline afterwards.
PYTHON ?= python3
PIP = .venv/bin/python -m pip --disable-pip-version-check
PACKAGE = pyproject.toml constraints.txt

.PHONY: help demo test check fix bench clean
help:
	@echo "make demo    install (without torch) and show what the package does"
	@echo "make test    install everything and run all tests"
	@echo "make check   lint, format and types"
	@echo "make fix     format, and mend what can be mended"
	@echo "make bench   measure, and keep the figures in benchmarks/results"

demo: .venv/demo.stamp
	@.venv/bin/elmofire demo

test: .venv/dev.stamp .wheels/base.stamp
	.venv/bin/python -m pytest -n auto --dist loadgroup $(ARGS)

check: .venv/dev.stamp
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/basedpyright

fix: .venv/dev.stamp
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

bench: .venv/dev.stamp
	cd benchmarks && for file in loading startup; do ../.venv/bin/python $$file.py || exit 1; done && ../.venv/bin/python tables.py

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "elmofire needs Python 3.11 or newer; say make PYTHON=...")'
	$(PYTHON) -m venv .venv

.venv/demo.stamp: .venv/bin/python $(PACKAGE)
	$(PIP) install --quiet -c constraints.txt hatchling editables
	$(PIP) install --quiet -c constraints.txt --no-build-isolation -e .
	@touch $@

.venv/dev.stamp: .venv/demo.stamp
	$(PIP) install --quiet -c constraints.txt --no-build-isolation -e ".[dev]"
	@touch $@

# The base dependencies as wheels: a test installs the built package from them into an environment of its own.
.wheels/base.stamp: $(PACKAGE) .venv/demo.stamp
	$(PIP) download --quiet --dest .wheels --only-binary :all: -c constraints.txt numpy safetensors h5py click filelock
	@touch $@

clean:
	rm -rf .venv .wheels dist build
