# Plain targets; each works on a fresh machine with Python 3.11 or later and its venv module.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 3
# a process that hangs in native code hears no signal: it is ended with the stacks of its threads
HUNG := -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
STAMP := $(VENV)/.installed
SITE := $(VENV)/.installed-docs
BROWSER := $(VENV)/.installed-browser
BENCH := $(VENV)/.installed-bench

# compiled modules are kept, because each worker of the tests and each service of a test would compile them anew
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run serve ui test test-browser test-install test-ray test-both test-real test-real-levers screenshots test-cpus test-all test-gpu coverage soak fuzz contract check format bench bench-real bench-quick demo-model train-real-sae docs site notebooks clean

$(STAMP): pyproject.toml service/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade -c constraints.txt -e '.[dev]' -e ./service
	touch $(STAMP)

run: $(STAMP) ## serve the demo model with its SAE attached on port 8000
	@$(BIN)/python hatch_build.py || true
	$(BIN)/python -m steerserve demo

serve: $(STAMP) ## serve with the settings of the environment
	@$(BIN)/python hatch_build.py || true
	$(BIN)/python -m steerserve serve

ui: $(STAMP) ## build the web page, and serve it with reloading on port 5173, beside `make run` in another terminal
	$(BIN)/python hatch_build.py watch

test: $(STAMP) ## the test suite, with the tests of the web page
	$(BIN)/python hatch_build.py test
	$(BIN)/python -m pytest $(HUNG) -n $(WORKERS) --dist loadfile -m 'not slow and not gpu and not soak and not browser and not ray and not real'

$(BROWSER): $(STAMP)
	$(BIN)/pip install -q -c constraints.txt -e '.[browser]'
	touch $(BROWSER)

test-browser: $(BROWSER) ## the web page in Chromium, skipped where there is none (CHROMIUM=path; KEEP=1 keeps what is measured)
	$(BIN)/python hatch_build.py
	$(BIN)/python hatch_build.py packages
	$(BIN)/python -m pytest $(HUNG) -m browser -rsP tests/browser

INSTALL ?= install
test-install: $(STAMP) ## environments of their own: the light install, and those of its extras (INSTALL='not serve': without PyTorch)
	$(BIN)/python -m pytest -m slow -k '$(INSTALL)' tests/test_install.py

RAY ?= ray
test-ray: $(STAMP) ## replicas on a Ray cluster of several nodes on this machine (RAY='ray and not slow': the short form)
	$(BIN)/python -m pytest $(HUNG) -m '$(RAY)' tests/engines/ray tests/engines/remote

BOTH ?= tests/api tests/v1 tests/contract tests/engines/checkpoint/test_process.py tests/app/test_lifecycle.py \
	tests/events/test_socketio.py tests/app/test_meter.py tests/test_pipelines.py tests/test_proof.py
test-both: $(STAMP) ## tests of the local backend over replicas on a Ray cluster (RAY_ADDRESS: on that cluster; BOTH: these files)
	$(BIN)/python -m pytest --backend ray -m 'not slow and not gpu and not soak and not real' $(BOTH)

REAL ?= tests/real
test-real: $(STAMP) ## two real models beside transformers in float32: fetches 330 MB once (REAL='tests/real/test_edits.py'; KEEP=1 keeps the figures)
	$(BIN)/python -m tools.real.models
	TORCH_THREADS=0 OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -m 'real and not slow' $(REAL)

test-real-levers: $(STAMP) ## six concepts, from texts to a lever on a real model: eight minutes (KEEP=1 keeps the figures)
	$(BIN)/python -m tools.real.models
	$(BIN)/python -m pytest -m 'real and slow' tests/real/test_concepts.py

screenshots: $(BROWSER) ## rewrite the pictures in docs/ui/
	$(BIN)/python hatch_build.py
	SCREENSHOTS=1 $(BIN)/python -m pytest -m browser tests/browser/test_screenshots.py

# what a processor may do differently: vector instructions of torch and oneDNN, and the number of threads; no mode says
# one thread, because `make test` itself runs with one thread
CPU_MODES := \
	ATEN_CPU_CAPABILITY=default \
	ATEN_CPU_CAPABILITY=avx2,ONEDNN_MAX_CPU_ISA=AVX2 \
	TORCH_THREADS=2,OMP_NUM_THREADS=2

test-cpus: $(STAMP) ## the test suite as other processors run it, once in each mode
	@for mode in $(CPU_MODES); do \
		echo "== $$mode"; \
		env $$(echo $$mode | tr , ' ') $(MAKE) --no-print-directory test || exit 1; \
	done

test-all: $(STAMP) ## the test suite with its slow part
	$(BIN)/python -m pytest -m 'not gpu and not soak and not browser and not ray and not real'

test-gpu: $(STAMP) ## the tests that need a card
	$(BIN)/python -m pytest -m gpu

COVER ?= -n $(WORKERS) --dist loadfile -m 'not slow and not gpu and not soak and not browser and not ray and not real'
coverage: $(STAMP) ## lines and branches that the test suite runs, in all processes; keeps its figures (COVER='tests/rules')
	$(BIN)/python -m tools.coverage $(COVER)

soak: $(STAMP) ## minutes of stress; prints what was measured (SOAK_SECONDS=3600: an hour of everything mixed)
	$(BIN)/python -m pytest -m soak -rP tests/soak tests/worker/batch/test_seeds.py tests/api/test_operators.py tests/api/test_fork_server.py

fuzz: $(STAMP) ## generated requests for every route; keeps its figures (FUZZ_REQUESTS=100000, FUZZ_SEED=1)
	$(BIN)/python -m tests.fuzz --keep

contract: $(STAMP) ## real clients in environments of their own; rewrites docs/clients.md (needs node and npm)
	$(BIN)/python -m tests.contract.clients

check: $(STAMP) ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## put the code in its form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BENCH): $(STAMP)
	$(BIN)/pip install -q -c constraints.txt -e '.[bench]'
	touch $(BENCH)

bench: $(BENCH) ## measure beside other servers; writes benchmarks/results/ and docs/performance*.md (an hour on 2 cores)
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.throughput
	$(BIN)/python -m benchmarks.evaluations
	$(BIN)/python -m benchmarks.edit_steps
	$(BIN)/python -m benchmarks.replicas
	$(BIN)/python -m benchmarks.page

BENCH_REAL ?= --rounds 3
bench-real: $(BENCH) ## measure real models beside llama.cpp and transformers; writes both as above (BENCH_REAL='--rounds 5')
	$(BIN)/python -m benchmarks.real $(BENCH_REAL)
	$(BIN)/python -m benchmarks.page

bench-quick: $(STAMP) ## the throughput of a small model, without peers, in under 3 minutes
	$(BIN)/python -m benchmarks.throughput --quick --out /tmp/steerserve-quick.json

demo-model: $(STAMP) ## rebuild the demo model and its SAEs from their seeds (under an hour on 2 cores)
	$(BIN)/python -m tools.demo.build

train-real-sae: $(STAMP) ## train an SAE for a real model, SmolLM2-135M-Instruct, and print its folder and figures
	$(BIN)/python -m tools.real.train_sae

$(SITE): $(STAMP)
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	touch $(SITE)

site: $(SITE) ## the manual as a site in site/; fails on a page that the navigation lacks and on a link to nothing
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs: $(STAMP) ## rewrite the generated tables in docs/
	$(BIN)/python -m docs.generate

notebooks: $(STAMP) ## run the notebooks of docs/notebooks/ against a demo service, and keep their outputs
	$(BIN)/python -m tools.notebooks

clean: ## remove the environment and caches
	rm -rf $(VENV) .venv-clients tests/contract/node/node_modules .mypy_cache .ruff_cache ui/node_modules \
		src/steerserve/webui site
