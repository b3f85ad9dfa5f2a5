# Needs make, Python 3.11 or newer and, for Spark and the Java client, Java 17. Where Go 1.24 is
# installed the official Go client is tested, too.
# Everything is installed into .venv on first use; stamp files keep the next runs quick.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
UNIT := not slow and not java and not spark and not go
GO := $(firstword $(shell command -v go) $(wildcard /usr/local/go/bin/go))
# Kept, or what tests assert, and every broker that they start, would be compiled anew each time.
unexport PYTHONDONTWRITEBYTECODE
# A worker that dies (the official client is C++) fails its test; one that takes its place may wait
# for work for ever: https://github.com/pytest-dev/pytest-xdist/issues/784
BY_FILE := --dist loadfile --max-worker-restart 0
LEFT_OUT := $(UNIT)$(if $(GO),, or go)

.DEFAULT_GOAL := help
.PHONY: help demo test check bench simulate kill-rounds spark-kills spark-backlog extremes mutate proto clients clean

help:  ## say what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/demo  ## the whole product at work: PySpark, kill -9 around it, exactly once (< 10 min)
	$(PY) -m pybroker.demo $(ARGS)

test: check  ## everything: static checks, all tests, real Spark, Java and Go clients (< 25 min)
	@$(if $(GO),,echo "Go is not installed (https://go.dev/dl): tests of the Go client are left out")
	$(PY) -m pytest -v -ra --durations=15 -m "not ($(LEFT_OUT))" --numprocesses 2 $(BY_FILE) $(ARGS)

check: $(VENV)/test  ## format, lint, types, unit tests (< 2 min)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m pytest -v -ra -m "$(UNIT)" --numprocesses 4 $(BY_FILE)

bench: $(VENV)/test  ## measure every target and print the table (ARGS="--help" for options)
	$(PY) tests/benchmarks $(ARGS)

simulate: $(VENV)/test  ## 1,000 simulated crash schedules from fresh seeds
	$(PY) -m tests.simulation $(ARGS)

kill-rounds: $(VENV)/test  ## 200 rounds of kill -9 under load, then the books are checked
	$(PY) tests/faults/kill_rounds.py $(ARGS)

mutate: $(VENV)/test  ## change one operator or statement at a time: a test or the simulation must notice (an hour)
	$(PY) -m tests.mutation $(ARGS)

spark-kills: $(VENV)/test  ## 30 rounds of kill -9 on a Spark cluster that writes (ARGS="--help" for options)
	$(PY) tests/spark/spark_kill_rounds.py $(ARGS)

spark-backlog: $(VENV)/test  ## ten million rows through a Spark with a driver of 512 MB (ARGS="--help" for options)
	$(PY) tests/spark/spark_backlog.py $(ARGS)

extremes: $(VENV)/test  ## extreme values in every command and route; on a quiet machine nobody waits 50 ms
	PYTHONPATH=tests/support $(PY) tests/faults/extreme_run.py $(ARGS)

proto: $(VENV)/test  ## write pybroker/wire/pulsar_api_pb2.py again from PulsarApi.proto
	$(PY) tests/tidy/generate_proto.py

clients: $(VENV)/test  ## write docs/clients.md from what the compatibility tests say of themselves
	$(PY) tests/tidy/generate_clients_document.py

clean:  ## remove what make made
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; say make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	@touch $@

$(VENV)/demo: $(VENV)/made pyproject.toml
	$(PY) -m pip install --progress-bar off --editable '.[demo]'
	@touch $@

$(VENV)/test: $(VENV)/made pyproject.toml
	$(PY) -m pip install --progress-bar off --editable '.[test,spark]'
	@touch $@
