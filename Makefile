# Every target works in an active environment, in .venv, or with PYTHON=/path/to/python.
ifdef VIRTUAL_ENV
PYTHON ?= $(VIRTUAL_ENV)/bin/python
else
PYTHON ?= .venv/bin/python
endif
BASE_PYTHON ?= python3

.PHONY: help venv lint format test check engines golden bench

help:
	@echo "make venv    create .venv with everything for development (BASE_PYTHON=python3.11)"
	@echo "make check   lint + test: what has to pass before a change lands"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make format  let ruff rewrite what it can"
	@echo "make test    pytest (ARGS='-m long' for the slow suites)"
	@echo "make engines Flink, Prism and Spark for real: needs Go, Java 17, Maven; 500 MB once"
	@echo "make golden  the golden tests on every other Python found"
	@echo "make bench   the scripts in tests/benchmarks/"

venv:
	$(BASE_PYTHON) -m venv .venv
	.venv/bin/python -m pip install --constraint constraints.txt --editable '.[dev]'

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -c "from importlinter.cli import lint_imports_command as run; run()"

format:
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

test:
	$(PYTHON) -m pytest $(ARGS)

check: lint test

engines:
	$(PYTHON) -m pytest -m "engines and not long" tests/engines $(ARGS)

golden:
	.ci/golden

bench:
	@for script in tests/benchmarks/*.py; do \
		if [ -e "$$script" ]; then echo "== $$script"; $(PYTHON) "$$script" || exit 1; fi; \
	done
