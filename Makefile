# The two commands that matter are `make demo` and `make test`. Both need Python 3.11 or later and make,
# set up everything else in .venv at their first run, and start in seconds after that.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/dev.txt
STAMP := $(VENV)/.set-up
# Half of the tests' time is waiting, for processes that start and for limits that pass.
WORKERS ?= 6
ADDRESS ?= 127.0.0.1:8000
OTELCOL := .cache/collector/otelcol
PIP_AUDIT := 2.10.1
GOVULNCHECK := v1.1.4
PROJECTS := pyproject.toml services/udf_sdk/pyproject.toml services/udf_sdk/hatch_build.py services/udf_sdk/millstream_udf/_columns.c
CHECKED := millstream services connectors tests tools examples benchmarks
PRESENT := $(foreach folder,$(CHECKED),$(if $(wildcard $(folder)/*.py $(folder)/*/*.py $(folder)/*/*/*.py),$(folder)))

# Neither has work for two processors, and one of them may wait for the network.
BEFORE_TESTS = $(MAKE) --no-print-directory --jobs=2 lint servers

# Each of the many processes that a run and the tests start would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup servers demo docs check test tests test-all test-images test-collector test-lowest lint spelling types format proto lock dist audit clean

help:  ## Show this list.
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: $(STAMP)  ## Create .venv from the lock; does nothing when that is up to date.

$(STAMP): $(LOCK) $(PROJECTS)
	@command -v $(PYTHON) >/dev/null || \
		{ echo "make: $(PYTHON) was not found. Install Python 3.11 or later, or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1), but Millstream needs Python 3.11 or later. Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "make: $(PYTHON) has no venv module. On Debian and Ubuntu it is the package python3-venv." >&2; exit 1; }
	@rm -f $(STAMP)
	@test -x $(BIN)/python || { echo "Creating $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "Installing the locked packages (about a minute the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(LOCK)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--editable services/udf_sdk --editable .
	@$(BIN)/python -m compileall -q millstream services connectors || true
	@$(BIN)/millstream spark prepare || echo "make: without that cache Spark takes twice as long to start" >&2
	@touch $(STAMP)

servers: $(STAMP)  ## Fetch the servers that tests of connectors run (cached); names what is not available.
	@$(BIN)/python tools/servers.py

demo: $(STAMP)  ## Replay the flights of 2013 through examples/flights and check every result.
	$(BIN)/python examples/flights/demo.py

docs: $(STAMP)  ## Serve the documentation at http://127.0.0.1:8000 (ADDRESS=host:port), and rebuild it when a page changes.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --dev-addr $(ADDRESS)

check: $(STAMP) lint types  ## Format, lint, types and the quick unit tests: under a minute.
	@# Of what git does not have yet: all files take a while, in `make test`.
	git ls-files --modified --others --exclude-standard --deduplicate -- '*.py' | xargs --no-run-if-empty ls -d 2>/dev/null \
		| xargs --no-run-if-empty $(BIN)/python tools/style.py
	$(BIN)/python -m pytest -q --numprocesses auto --hypothesis-profile quick \
		-m "not process and not slow" tests/unit

test: $(STAMP)  ## All checks and all tests, the files of tests on WORKERS processes.
	@$(BEFORE_TESTS)
	@# Types need one processor for half a minute, in which the tests are collected.
	@$(MAKE) --no-print-directory --jobs=2 types tests

test-all: $(STAMP)  ## The same with every sweep at full size, and every planted defect (hours).
	@$(BEFORE_TESTS)
	@MILLSTREAM_TESTS=all $(MAKE) --no-print-directory --jobs=2 types tests
	$(BIN)/python tools/defects.py

tests: $(STAMP)
	@# Not with the job server of this make, which a test's own make would ask.
	env -u MAKEFLAGS -u MFLAGS $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test-images: $(STAMP)  ## Build and run the images (root, podman, buildah, runc, debootstrap; minutes).
	MILLSTREAM_IMAGES=1 $(BIN)/python -m pytest tests/images

test-collector: $(STAMP) $(OTELCOL)  ## Telemetry through OpenTelemetry's own collector (Go; the first time minutes).
	$(BIN)/python -m pytest tests/mesh/test_collector.py

$(OTELCOL): $(wildcard tools/otelcol/*)
	cd tools/otelcol && go build -trimpath -ldflags "-s -w" -o $(abspath $(OTELCOL)) .

test-lowest: $(STAMP)  ## The unit and contract suites with the lowest versions that are declared.
	$(BIN)/python tools/lowest.py

lint: $(STAMP)  ## Style, import direction, proto files, generated code.
	$(BIN)/ruff check $(PRESENT)
	$(BIN)/ruff format --check $(PRESENT)
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/python tools/generate_protos.py --check

spelling: $(STAMP)  ## Words that codespell does not know, in pages and in the product; no check depends on it.
	$(BIN)/codespell *.md docs $(filter millstream services connectors,$(PRESENT))

types: $(STAMP)  ## Strict type checking.
	$(BIN)/mypy $(PRESENT)

format: $(STAMP)  ## Rewrite the code in the project's format and apply safe fixes.
	$(BIN)/ruff check --fix $(PRESENT)
	$(BIN)/ruff format $(PRESENT)

proto: $(STAMP)  ## Regenerate the wire modules from proto/.
	$(BIN)/python tools/generate_protos.py

lock: $(STAMP)  ## Resolve the lock files from the two pyproject.toml files.
	$(BIN)/python tools/lock.py

dist: $(STAMP)  ## Build wheels, sdists, a bill of materials and checksums into dist/.
	$(BIN)/python tools/dist.py

audit: $(STAMP)  ## Ask the advisory databases about everything in the locks (needs the network).
	$(BIN)/uvx --from pip-audit==$(PIP_AUDIT) pip-audit --strict --disable-pip --require-hashes \
		$(foreach lock,run reduce udf build dev,--requirement requirements/$(lock).txt)
	@command -v go >/dev/null || echo "make: without Go the modules of sdk/go are not looked at" >&2
	@! command -v go >/dev/null || (cd sdk/go && go run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK) ./...)

clean:  ## Remove .venv, caches and build output.
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(PRESENT) -name __pycache__ -prune -exec rm -rf {} +
