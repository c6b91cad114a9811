# Two commands for a newcomer: `make serve` and `make test`. Both make what they need first, and are safe to repeat.
PYTHON ?= python3
SERVE_FLAGS ?= --model_base_path=./model_repos --grpc_port=8500 --http_port=8501

# The quick tests: two workers of pytest-xdist, fewer Hypothesis examples. UNIT_FLAGS adds options, such as `-k name` or `-x`.
UNIT_FLAGS ?=
TWO_PROCESSES = -n 2 --dist worksteal
QUICK = $(TWO_PROCESSES) --quiet -m 'not slow' --hypothesis-profile=quick tests/unit tests/conformance clients/python/tests $(UNIT_FLAGS)

# The tests start some thousand interpreters. Each would compile all its modules again in an environment that forbids to write bytecode.
unexport PYTHONDONTWRITEBYTECODE

# Every test, once: protocol tests one after another, because they wait for servers with time limits, which tests beside them would use up;
# all others in two processes. The second part runs even if the first one failed. $(1): the command that is pytest.
define EVERY_TEST
others=0; protocol=0; \
$(1) $(TWO_PROCESSES) --ignore=tests/protocol || others=$$?; \
$(1) tests/protocol || protocol=$$?; \
echo "exit codes of pytest: $$protocol for tests/protocol, $$others for all other tests"; \
test "$$others$$protocol" = 00
endef

STAMP = .venv/.stoker-setup
CLIENTS_STAMP = .venv-clients/.stoker-setup
BUILD_STAMP = .venv-build/.stoker-setup
NATIVE_STAMP = .venv-native/.stoker-setup
CLIENTS_PB7_STAMP = .venv-clients-pb7/.stoker-setup
PROTOS_STAMP = .venv-protos/.stoker-setup
KSERVE_STAMP = .venv-kserve/.stoker-setup
DOCS_STAMP = .venv-docs/.stoker-setup
NODE_STAMP = .node-client/.stoker-setup

.PHONY: help setup serve wheels native native-unit native-test test unit check format clients-env docs-env docs docs-version protos samples bench perf-analyzer node-client kserve-client clean

help:  ## Show these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(STAMP)  ## Make .venv with the server, the client and what the tests need

$(STAMP): pyproject.toml clients/python/pyproject.toml constraints.txt
	@if test -x .venv/bin/pip; then echo 'updating .venv'; else echo 'setting up .venv: 5 to 10 minutes the first time'; fi
	test -x .venv/bin/pip || $(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet -c constraints.txt -e clients/python -e '.[compile,openvino,otel,examples,bench,test]'
	touch $@

serve: setup  ## Serve the sample repository on ports 8500 (gRPC) and 8501 (HTTP)
	.venv/bin/serve $(SERVE_FLAGS)

wheels: $(BUILD_STAMP)  ## Build the packages stoker and stoker-client in dist: wheels, source distributions
	rm -rf dist
	.venv-build/bin/python -m build --quiet --outdir dist clients/python
	.venv-build/bin/python -m build --quiet --outdir dist .
	.venv-build/bin/twine check --strict dist/*

$(BUILD_STAMP):
	test -x .venv-build/bin/pip || $(PYTHON) -m venv .venv-build
	.venv-build/bin/pip install --quiet build twine
	touch $@

# A wheel in an environment of its own, never in place: a stale compiled module beside an edited source file would win without a word.
# mypy would read an installed `stoker` instead of the sources, so it is removed first.
native: $(NATIVE_STAMP)  ## Make .venv-native and a wheel in dist-native: the server with compiled modules (needs a C compiler and Python's headers; minutes)
	.venv-native/bin/pip uninstall --quiet --yes stoker
	rm -rf build dist-native
	STOKER_NATIVE=1 .venv-native/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist-native .
	.venv-native/bin/pip install --quiet --no-deps dist-native/stoker-*.whl
	rm -rf build
	.venv-native/bin/serve --version

$(NATIVE_STAMP): pyproject.toml clients/python/pyproject.toml constraints.txt
	@command -v $${CC:-cc} >/dev/null || { echo "make native needs a C compiler: there is no '$${CC:-cc}'" >&2; exit 2; }
	@$(PYTHON) -c 'import pathlib, sys, sysconfig; \
	    sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' \
	    || { echo "make native needs the headers of $(PYTHON) (Debian: python3-dev)" >&2; exit 2; }
	test -x .venv-native/bin/pip || $(PYTHON) -m venv .venv-native
	.venv-native/bin/pip install --quiet -c constraints.txt ./clients/python '.[compile,openvino,otel,examples,bench,test]'
	rm -rf build clients/python/build
	touch $@

native-unit: native  ## Run the quick unit tests against the compiled modules
	.venv-native/bin/python -m pytest --native $(QUICK)

native-test: native clients-env $(PROTOS_STAMP)  ## Run every test against the compiled modules
	@$(call EVERY_TEST,.venv-native/bin/python -m pytest --native)

clients-env: $(CLIENTS_STAMP) $(CLIENTS_PB7_STAMP)  ## Make .venv-clients: foreign clients, apart from ours

$(CLIENTS_STAMP): constraints-clients.txt
	test -x .venv-clients/bin/pip || $(PYTHON) -m venv .venv-clients
	.venv-clients/bin/pip install --quiet -c constraints-clients.txt 'tritonclient[all]' httpx openapi-spec-validator openai
	.venv-clients/bin/pip install --quiet --no-deps -c constraints-clients.txt tensorflow-protobuf
	.venv-clients/bin/pip install --quiet --no-deps -c constraints-clients.txt tensorflow-serving-api
	touch $@

# The same client beside the next major version of protobuf, which its metadata does not admit but its code runs on.
$(CLIENTS_PB7_STAMP): constraints-clients.txt
	test -x .venv-clients-pb7/bin/pip || $(PYTHON) -m venv .venv-clients-pb7
	.venv-clients-pb7/bin/pip install --quiet -c constraints.txt numpy grpcio 'protobuf>=7' httpx packaging ml_dtypes
	.venv-clients-pb7/bin/pip install --quiet --no-deps -c constraints-clients.txt tritonclient python-rapidjson
	touch $@

docs-env: $(DOCS_STAMP)  ## Make .venv-docs: the generator of the documentation site (100 MB)

$(DOCS_STAMP): constraints-docs.txt
	test -x .venv-docs/bin/pip || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet -c constraints-docs.txt mkdocs-material 'mkdocstrings[python]' mike mypy_extensions ruff
	touch $@

docs: $(DOCS_STAMP)  ## Build the documentation site in .site/html; a warning is an error
	$(PYTHON) scripts/docs_tree .site/pages
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@echo 'the site is in .site/html: open .site/html/index.html'

docs-version: docs  ## Commit the site as VERSION=X.Y, and as the latest one, to the local branch gh-pages
	@test -n '$(VERSION)' || { echo 'make docs-version needs VERSION, such as VERSION=0.2' >&2; exit 2; }
	PATH="$(CURDIR)/.venv-docs/bin:$$PATH" NO_MKDOCS_2_WARNING=1 mike deploy --update-aliases '$(VERSION)' latest
	PATH="$(CURDIR)/.venv-docs/bin:$$PATH" NO_MKDOCS_2_WARNING=1 mike set-default latest

$(PROTOS_STAMP):
	test -x .venv-protos/bin/pip || $(PYTHON) -m venv .venv-protos
	.venv-protos/bin/pip install --quiet grpcio-tools==1.80.0
	touch $@

protos: $(PROTOS_STAMP)  ## Generate the message code from proto/
	scripts/generate_protos

samples: setup  ## Rebuild the compiled sample models; a test compares them with the committed ones
	.venv/bin/python examples/digits/compile_ipu.py
	.venv/bin/python examples/digits/compile_gcu.py

test: setup clients-env $(PROTOS_STAMP)  ## Run every test: unit, slow and protocol
	@$(call EVERY_TEST,.venv/bin/pytest)

unit: setup  ## Run the quick unit tests in two processes; those marked slow run with 'make test' only
	.venv/bin/pytest $(QUICK)

check: setup clients-env $(PROTOS_STAMP)  ## Format, lint, types, import contracts, then the tests
	scripts/check

format: setup  ## Rewrite the code with ruff
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

bench: setup  ## Measure the server against raw onnxruntime and a bare echo
	.venv/bin/python -m benchmarks

perf-analyzer: setup  ## Fetch Triton's load generator into .perf_analyzer (x86_64 Linux; see docs/protocols.md)
	scripts/perf_analyzer --fetch

node-client: $(NODE_STAMP)  ## Make .node-client: gRPC and OpenAI clients in JavaScript (needs node 18 or newer, and npm)

$(NODE_STAMP): tests/protocol/foreign_node/package.json
	mkdir -p .node-client
	cp $< .node-client/
	npm install --prefix .node-client --ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error
	touch $@

kserve-client: $(KSERVE_STAMP)  ## Make .venv-kserve: KServe's own SDK, whose inference clients the tests ask (450 MB)

$(KSERVE_STAMP): constraints-clients.txt
	test -x .venv-kserve/bin/pip || $(PYTHON) -m venv .venv-kserve
	.venv-kserve/bin/pip install --quiet -c constraints-clients.txt kserve
	touch $@

clean:  ## Remove the environments and caches
	rm -rf .venv .venv-build .venv-native .venv-clients .venv-clients-pb7 .venv-protos .venv-kserve .venv-docs .perf_analyzer .node-client .site build dist dist-native clients/python/build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
