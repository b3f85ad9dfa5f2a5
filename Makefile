# Needs make, Python 3.11 or newer and, for Spark and the Java client, Java 17. If Go 1.24, Rust 1.85
# (with a C compiler) or Node.js 18 is installed, the client for it is tested too. Everything is
# installed into .venv on first use; stamp files keep later runs fast.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PROTOC := build/protoc
UNIT := not slow and not java and not spark and not go and not rust and not node and not browser and not postgresql
GO := $(firstword $(shell command -v go) $(wildcard /usr/local/go/bin/go))
RUST := $(shell command -v cc >/dev/null && cargo --version 2>/dev/null | \
  awk '{split($$2, version, "."); if (version[1] > 1 || version[2] >= 85) print "rust"}')
NODE := $(shell command -v npm >/dev/null && node --version 2>/dev/null | \
  awk -F '[v.]' '$$2 >= 18 {print "node"}')
POSTGRESQL := $(firstword $(shell command -v initdb) $(wildcard /usr/lib/postgresql/*/bin/initdb))
# Evaluated again after `browser` has tried to install it.
BROWSER = $(shell command -v chromium >/dev/null && command -v chromedriver >/dev/null && \
  command -v npm >/dev/null && echo browser)
# Without bytecode files, the tests and every broker that they start would be compiled each time.
unexport PYTHONDONTWRITEBYTECODE
# A worker that dies (the official client is C++) fails its test. No worker replaces it, because that
# one might wait for work forever: https://github.com/pytest-dev/pytest-xdist/issues/784
# tests/conftest.py puts the slow files first, and xdist must leave them there.
BY_FILE := --dist loadfile --max-worker-restart 0
LEFT_OUT = $(UNIT)$(if $(GO),, or go)$(if $(RUST),, or rust)$(if $(NODE),, or node)$(if $(POSTGRESQL),, or postgresql)$(if $(BROWSER),, or browser)

.DEFAULT_GOAL := help
.PHONY: help demo test browser check bench spec simulate kill-rounds database-kills cluster-kill-rounds spark-kills spark-backlog extremes mutate proto clients docs drawings release screenshots metrics clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/demo  ## PySpark pipelines, exactly once while processes are killed (< 10 min)
	$(PY) -m pybroker.demo $(ARGS)

test: check browser  ## everything: static checks, all tests, real Spark, Java and other clients (40 min on two cores)
	@$(if $(GO),,echo "Go is not installed (https://go.dev/dl): tests of the Go client are left out")
	@$(if $(RUST),,echo "Rust 1.85 with a C compiler is not installed (https://rustup.rs): tests of the Rust crate are left out")
	@$(if $(NODE),,echo "Node.js 18 with npm is not installed (https://nodejs.org): tests of the JavaScript client are left out")
	@$(if $(POSTGRESQL),,echo "PostgreSQL is not installed (Debian: postgresql): tests with it are left out")
	@$(if $(BROWSER),,echo "Chromium with its driver, or npm, is not installed (Debian: chromium chromium-driver npm): tests of the console in a browser are left out")
	$(PY) tests/compat/fetch.py java $(if $(GO),go) $(RUST) $(NODE)
	$(PY) -m pytest -v -ra --durations=15 -m "not ($(LEFT_OUT)) or hypothesis" --numprocesses 3 $(BY_FILE) --no-loadscope-reorder $(ARGS)

browser:
	@$(if $(BROWSER),,sh tests/console/install_chromium.sh)

check: $(VENV)/test  ## format, lint, types, unit tests (< 2 min)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	@# In a fresh clone each worker would compile all tests: one process does it, while mypy runs.
	@[ -d tests/__pycache__ ] || $(PY) -m pytest --collect-only >/dev/null 2>&1 & \
	  echo "$(PY) -m mypy"; $(PY) -m mypy; status=$$?; wait; exit $$status
	$(PY) -m pytest -v -ra -m "$(UNIT)" --hypothesis-profile quick --numprocesses 4 $(BY_FILE)

bench: $(VENV)/test  ## measure every target and print the table (ARGS="--help" for options)
	$(PY) tests/benchmarks $(ARGS)

spec: $(VENV)/test  ## explore every state of the models of the decisions (ARGS="--help" for options)
	$(PY) -m spec $(ARGS)

simulate: $(VENV)/test  ## 1,000 simulated crash schedules from fresh seeds (ARGS="--cluster": of several brokers)
	$(PY) -m tests.simulation $(ARGS)

kill-rounds: $(VENV)/test  ## 200 rounds of kill -9 under load; checks the counts afterwards
	$(PY) tests/faults/kill_rounds.py $(ARGS)

database-kills: $(VENV)/test  ## 200 rounds of kill -9 while a program commits with SQLite or PostgreSQL and the broker
	$(PY) tests/databases/database_kills.py $(ARGS)

cluster-kill-rounds: $(VENV)/test  ## 100 rounds of kill -9 in a cluster of real bookies and ZooKeeper (needs Java 17)
	$(PY) tests/faults/cluster_kill_rounds.py $(ARGS)

mutate: $(VENV)/test  ## change one operator or statement at a time: a test or the simulation must notice (an hour)
	$(PY) -m tests.mutation $(ARGS)

spark-kills: $(VENV)/test  ## 30 rounds of kill -9 on a Spark cluster that writes (ARGS="--help" for options)
	$(PY) tests/spark/spark_kill_rounds.py $(ARGS)

spark-backlog: $(VENV)/test  ## ten million rows through a Spark driver with 512 MB (ARGS="--help" for options)
	$(PY) tests/spark/spark_backlog.py $(ARGS)

extremes: $(VENV)/test  ## extreme values in every command and route; on a quiet machine no client waits 50 ms
	PYTHONPATH=tests/support $(PY) tests/faults/extreme_run.py $(ARGS)

proto: $(PROTOC)/made  ## regenerate pybroker/wire/pulsar_api_pb2.py from PulsarApi.proto
	$(PROTOC)/bin/python tests/tidy/generate_proto.py

clients: $(VENV)/test  ## regenerate docs/clients.md from the compatibility tests
	$(PY) tests/tidy/generate_clients_document.py

screenshots: $(VENV)/test  ## take the console's screenshots for docs/images, in Chromium
	PYTHONPATH=tests/support $(PY) tests/console/screenshots.py

docs: $(VENV)/docs  ## build the documentation site to build/docs
	$(PY) -m sphinx --fail-on-warning --nitpicky --keep-going --quiet --builder html docs build/docs

drawings:  ## draw docs/internals/drawings again (needs Graphviz)
	$(PYTHON) tests/tidy/generate_drawings.py

# The bytes of sdist and wheel depend only on the sources: times are those of the last commit, and
# modes do not depend on the umask.
release: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
release: $(VENV)/release  ## build wheel and sdist to dist, and the SBOM of a broker to dist/sbom.json
	rm -rf dist build/lib build/bdist.* build/sbom
	$(PY) -m build --sdist --outdir dist .
	$(PY) tests/tidy/normalize_sdist.py dist/*.tar.gz
	umask 022 && $(PY) -m pip wheel --no-deps --progress-bar off --wheel-dir dist dist/*.tar.gz
	$(PYTHON) -m venv build/sbom
	build/sbom/bin/python -m pip install --quiet --progress-bar off "$$(ls dist/*.whl)[compression,encryption,security]"
	$(VENV)/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
	  --output-file dist/sbom.json build/sbom/bin/python

metrics: $(VENV)/test  ## regenerate the table in docs/metrics.md
	$(PY) tests/tidy/generate_metrics_document.py

clean:  ## remove everything that make created
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

# The last protoc whose code the oldest protobuf runs that pyproject.toml allows.
$(PROTOC)/made:
	$(PYTHON) -m venv $(PROTOC)
	$(PROTOC)/bin/python -m pip install --progress-bar off 'grpcio-tools==1.78.2' 'setuptools'
	@touch $@

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

$(VENV)/docs: $(VENV)/made pyproject.toml
	$(PY) -m pip install --progress-bar off --editable '.[docs,security,spark]'
	@touch $@

$(VENV)/release: $(VENV)/made pyproject.toml
	$(PY) -m pip install --progress-bar off '.[release]'
	@touch $@
