# make demo and make test need only Python 3.11 or newer and make; what they install stays in .venv and .wheels, so both
# work offline afterwards.
PYTHON ?= python3
PIP = .venv/bin/python -m pip --disable-pip-version-check
PACKAGE = pyproject.toml constraints.txt

.PHONY: help demo test check fix sanitize arm bench clean
help:
	@echo "make demo      install (without torch) and show what the package does"
	@echo "make test      install everything and run all tests"
	@echo "make check     lint, format and types"
	@echo "make fix       format, and mend what can be mended"
	@echo "make sanitize  run the C kernels under AddressSanitizer and UBSan"
	@echo "make arm       run the C kernels on an emulated ARM processor (gcc-aarch64-linux-gnu, qemu-user)"
	@echo "make bench     measure, and keep the figures in benchmarks/results"

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

# Python's own leaks at its end are no business of this.
sanitize: .venv/dev.stamp
	.venv/bin/python tests/engine/selfcheck/run.py --sanitize --output .sanitize
	ELMOFIRE_LIBRARY_FOLDER=$(CURDIR)/.sanitize ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=$$($(CC) -print-file-name=libasan.so) \
		.venv/bin/python -m pytest -n 0 -q tests/engine/test_kernels.py tests/engine/test_threads.py

arm: .venv/demo.stamp
	CC=aarch64-linux-gnu-gcc .venv/bin/python tests/engine/selfcheck/run.py --target aarch64 \
		--emulator "qemu-aarch64 -L /usr/aarch64-linux-gnu" > benchmarks/results/arm-qemu.log; \
		failed=$$?; cat benchmarks/results/arm-qemu.log; exit $$failed

bench: .venv/dev.stamp .peer/bin/python
	cd benchmarks && ../.venv/bin/python loading.py && ../.venv/bin/python startup.py \
		&& ../.venv/bin/python embed.py ../.peer/bin/python && ../.venv/bin/python lstmp.py cpu \
		&& ../.venv/bin/python tables.py && ../.venv/bin/python plots.py

# AllenNLP in an environment of its own, to measure beside.
.peer/bin/python:
	benchmarks/peers/allennlp.sh .peer

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
	rm -rf .venv .wheels .peer .sanitize src/elmofire/engine/compiled/libelmofire* dist build
