# `make help` lists the targets. `make demo` and `make test` need Python 3.11 or later, nothing else.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
# Tools whose packages exclude ours, each in an environment of its own, from hashed locks.
TOOLS := aws sam checkov release zensical
TOOL := $(VENV)/tools
SAM := $(TOOL)/sam/bin/sam
# Four processes on two cores: many tests wait for other processes.
PYTEST_ARGS ?= -n 4
# Also what `make test` puts off (tests/support/long.py).
ALL := -m 'long or not long'

# Frameworks whose agents run in an environment of their own, as their pins are not ours. Those with an
# adapter have an example, which `dev` starts there: their environments have the local stack, too.
FRAMEWORKS := agent_framework
ADAPTED := google_adk openai_agents strands
# A server of others that keeps its tasks in our stores.
SERVING := agentcore
# And the official client of an older version.
OLDER_CLIENT := python_0_3
# What the SDK's own SQL stores need, which the contract of ours runs over, too.
SQL := sdk_sql
FOREIGN := $(patsubst %,build/foreign/%/requirements.txt,$(FRAMEWORKS) $(ADAPTED) $(OLDER_CLIENT) $(SQL) $(SERVING))
# Servers that an agent calls, beside those of FRAMEWORKS and ADAPTED; their SDK is that of 0.3.
CALLED := build/foreign/strands_client/requirements.txt build/peers/a2akit/requirements.txt
# Frameworks and tools that are clients here, with the SDK that they ask for.
DELEGATING := crewai strands_client
DELEGATING += a2a_handler ag2 agno app_foundation astromesh beeai conductor fast_agent
DELEGATING += langchain_adapters langchain_remote litellm nemo novaos ovos trpc_agent
CLIENTS := $(FOREIGN) $(patsubst %,build/foreign/%/requirements.txt,$(DELEGATING))
# Frameworks without an adapter, which docs/build/patterns.md shows: by the client of OpenAI's that they need.
WITH_OPENAI := with_openai_2 with_openai_3
PATTERNS := $(patsubst %,build/foreign/%/requirements.txt,$(WITH_OPENAI))

# What benchmarks/peers compares with, each in an environment of its own.
PEERS := a2akit sdk langgraph

# What an emulated AWS needs: `make cloud`.
CLOUD := $(VENV)/.stamp build/cloud/venv/requirements.txt $(TOOL)/sam/requirements.txt
# What its checks need besides: the commands of the pages.
AWS := $(TOOL)/aws/requirements.txt

export RELEASE
# Every process that a test starts would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
export UV_PYTHON_DOWNLOADS := never
export SAM_CLI_TELEMETRY := 0

# A version manager's shim may be on the path and run nothing, and Debian's python3 may lack venv:
# only an interpreter that shows both is taken. PYTHON=... overrules the choice.
define find_python
usable() { "$$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }; \
candidates() { \
	[ -z "$(PYTHON)" ] || { echo "$(PYTHON)"; return; }; \
	echo python3.13; \
	ls -d "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.*/bin/python3 2>/dev/null | sort -rV; \
	echo python3; \
}; \
for python in $$(candidates); do usable "$$python" && break; python=; done; \
[ -n "$$python" ] || { echo "No Python 3.11 or later with venv (Debian: python3-venv)." >&2; exit 1; }
endef

.PHONY: demo
demo: $(VENV)/.stamp ## one streamed and one resumed task on this machine
	$(BIN)/a2a-serverless demo

.PHONY: test
test: $(VENV)/.stamp ## all tests but the long ones; where `make emulators` and `make foreign` were run, those that need them
	$(BIN)/python -m pytest $(PYTEST_ARGS)

.PHONY: long
long: $(VENV)/.stamp ## what takes seconds each, and what `make test` does in short: a project out of the wheel, ten minutes of one hostile client, a model that is away, files of 100 MB
	A2A_PROJECTS=one $(BIN)/python -m pytest $(PYTEST_ARGS) -m long

.PHONY: foreign
foreign: $(VENV)/.stamp $(FOREIGN) $(CALLED) ## agents of other frameworks and clients of other versions, unmodified
	$(BIN)/python -m pytest tests/conformance/test_stock_comparison.py -k framework
	$(BIN)/python -m pytest $(ALL) tests/e2e/test_frameworks.py tests/unit/frameworks
	$(BIN)/python -m pytest tests/e2e/test_foreign_clients.py tests/e2e/test_called_servers.py
	$(BIN)/python -m pytest tests/contract/test_stores.py -k sql

.PHONY: patterns
patterns: $(VENV)/.stamp $(PATTERNS) ## the agents of docs/build/patterns.md, each with its framework (1.2 GB)
	$(BIN)/python -m pytest tests/unit/frameworks/test_patterns.py

.PHONY: clients
clients: $(VENV)/.stamp ## every client does all that it can: docs/understand/clients.md and answers.md; their requests for the suite
	-$(MAKE) --keep-going $(CLIENTS) build/foreign/javascript/.stamp
	-$(BIN)/python -m tests.foreign.matrix
	$(BIN)/python -m tests.foreign.answers

.PHONY: busy
busy: $(VENV)/.stamp ## the suite in two orders at random, beside four processes that keep the cores busy
	@for each in 1 2 3 4; do while :; do :; done & others="$$others $$!"; done; \
		trap "kill $$others" EXIT; for each in 1 2; do \
		$(MAKE) test PYTEST_ARGS="$(PYTEST_ARGS) --order $$RANDOM" || exit 1; done

# Two regions of the partition aws, and one of each other partition.
REGIONS := us-east-1 eu-central-1 us-gov-west-1 cn-north-1

.PHONY: check
check: $(VENV)/.stamp $(TOOL)/checkov/requirements.txt ## format, lint, types, import contracts, the template, the pages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/cfn-lint template.yaml fargate.yaml --append-rules cfn_lint_serverless.rules --regions $(REGIONS)
	$(TOOL)/checkov/bin/checkov --config-file .checkov.yaml
	$(BIN)/python -m website check

.PHONY: docs
docs: $(VENV)/.stamp $(TOOL)/zensical/requirements.txt ## the site: build/site/site/index.html, to read with or without a server
	$(BIN)/python -m website build
	$(TOOL)/zensical/bin/zensical build --clean --strict --config-file build/site/mkdocs.yml
	$(BIN)/python -m website search

.PHONY: format
format: $(VENV)/.stamp ## format, and fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: faults
faults: $(VENV)/.stamp emulators ## the long form of the fault tests, of polls of hours and of parallel calls
	A2A_FAULTS=long $(BIN)/python -m pytest $(PYTEST_ARGS) $(ALL) tests/faults tests/contract \
		tests/e2e/test_neighbours.py tests/e2e/test_upgrade.py \
		tests/unit/tasks/test_fold.py \
		tests/unit/worker/test_outages.py \
		tests/unit/worker/test_question_kills.py tests/unit/worker/test_shares.py \
		tests/unit/worker/test_leaving.py \
		tests/unit/frameworks/test_langgraph_interrupts.py --timeout 3600

.PHONY: attack
attack: $(VENV)/.stamp emulators ## one caller attacks each account for ten minutes while another one works: on a clock that jumps, and on processes
	rm -f build/attack.md
	A2A_ATTACK=long A2A_FAULTS=long $(BIN)/python -m pytest $(ALL) tests/e2e/test_neighbours.py tests/faults/test_attacks.py
	@cat build/attack.md

.PHONY: mutants
mutants: $(VENV)/.stamp ## damages one guarantee after the other: tests have to notice each (WORDS="tasks worker/lease.py")
	$(BIN)/python -m tests.mutants $(WORDS)

# The newest packages that all requirements together allow. What would change in each lock, `make lock
# UPGRADE=--upgrade` shows.
NEWEST := build/newest/bin/python
NEWEST_TESTS ?= tests/unit tests/contract tests/functions tests/conformance
.PHONY: newest
newest: $(VENV)/.stamp ## what is newer than the locks, what is held back, and what breaks with it; never fails
	-$(UV) venv --quiet --clear --python $(BIN)/python build/newest
	-$(UV) pip install --quiet --python $(NEWEST) --group dev \
		--editable '.[local,otel,testing,worker,langgraph,pydantic-ai]'
	-comm -13 <(grep -oE '^[a-z0-9._-]+==[^ ;]+' requirements/dev.txt | sort) <($(UV) pip freeze --python $(NEWEST) | sort)
	-$(UV) pip list --outdated --python $(NEWEST)
	-$(NEWEST) -m pytest -q $(NEWEST_TESTS)

.PHONY: record-logs
record-logs: $(VENV)/.stamp emulators ## tests/faults/logs/: what each kill point leaves in the table, from real runs
	A2A_RECORD_LOGS=1 A2A_REQUIRE_EMULATORS=1 $(BIN)/python -m pytest $(PYTEST_ARGS) -k "a_kill_loses" \
		tests/faults/test_kill_points.py tests/faults/test_push_kills.py

.PHONY: model
model: $(VENV)/.stamp ## every interleaving at length, and what each guard is good for
	$(BIN)/python -m tests.model --long

.PHONY: bench-storage
bench-storage: $(VENV)/.stamp emulators ## what the storage costs, on DynamoDB Local
	$(BIN)/python -m benchmarks.storage

.PHONY: bench-races
bench-races: $(VENV)/.stamp emulators ## a commit beside renewals and new webhooks, on DynamoDB Local
	$(BIN)/python -m benchmarks.races

.PHONY: bench-stream
bench-stream: $(VENV)/.stamp emulators ## commit to client, here and on the official SDK's server
	$(BIN)/python -m benchmarks.stream

.PHONY: bench-cost
bench-cost: $(VENV)/.stamp emulators ## what tasks cost, from counted calls: docs/operate/cost.md
	$(BIN)/python -m benchmarks.cost
	$(BIN)/python -m benchmarks.cost_shared

.PHONY: bench-load
bench-load: $(VENV)/.stamp emulators ## how many tasks a second the emulators take: docs/operate/load.md
	$(BIN)/python -m benchmarks.load $(BENCH_ARGS)

.PHONY: bench-status
bench-status: $(VENV)/.stamp emulators ## the operators' first page beside 100,000 tasks: docs/operate/status.md
	$(BIN)/python -m benchmarks.status $(BENCH_ARGS)

.PHONY: bench-push
bench-push: $(VENV)/.stamp emulators ## what a slow webhook costs its task
	$(BIN)/python -m benchmarks.push

.PHONY: bench-peers
bench-peers: $(VENV)/.stamp emulators ## beside the SDK's server, a2akit and LangGraph: SHORT=1 in minutes
	@for peer in $(PEERS); do \
		$(MAKE) --quiet build/peers/$$peer/requirements.txt || echo "$$peer cannot be installed." >&2; \
	done
	$(BIN)/python -m benchmarks.peers $(if $(SHORT),--short) $(BENCH_ARGS)

.PHONY: bench-imports
bench-imports: $(VENV)/.stamp ## what a cold start imports, beside the official SDK's server
	$(BIN)/python -m benchmarks.imports

.PHONY: conformance
conformance: $(VENV)/.stamp ## the A2A project's kits of 1.0 and 0.3: KIT=/its/checkout KIT_0_3=/another, see docs/understand/conformance-kit.md
	$(BIN)/python -m tests.conformance.kit "$(KIT)" "$(KIT_0_3)"

.PHONY: live
live: $(VENV)/.stamp ## the checks of `make cloud` on a stack of your AWS account: STACK=name REGION=region, see docs/maintain/live.md
	$(BIN)/python -m tests.cloud --stack "$(STACK)" --region "$(REGION)" $(LIVE_ARGS)

# uv takes no interpreter behind a version manager's shim: those of pyenv are looked for, too.
PYTHON_3_13 = $(UV) python find --no-project 3.13 2>/dev/null \
	|| ls "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.13.*/bin/python3 2>/dev/null | sort -V | tail -1 | grep .

.PHONY: has-python-3.13
has-python-3.13: $(VENV)/.stamp
	@{ $(PYTHON_3_13); } >/dev/null

.PHONY: cloud
cloud: $(CLOUD) $(AWS) ## sam deploy onto an emulated AWS, its checks, sam delete: docs/maintain/cloud.md (Python 3.13)
	@$(BIN)/python -m tests.cloud $(CLOUD_ARGS)

.PHONY: cloud-up
cloud-up: $(CLOUD) ## the deployment without an account: prints its address, and a key; Ctrl-C ends it
	@$(BIN)/python -m a2a_serverless_tools.cloud --sam $(TOOL)/sam/bin/sam \
		--emulator build/cloud/venv/bin/python $(CLOUD_ARGS)

# Each makes a virtual environment of its own, for which Debian's python3 may lack venv.
.PHONY: findings
findings: $(UV) ## what surprises in packages of others, each in an environment of its own: lists what has changed
	@changed=; for each in findings/*.sh; do \
		echo "$$each"; PATH="$(CURDIR)/$(BIN):$$PATH" $$each || changed="$$changed $$each"; \
	done; [ -z "$$changed" ] || { echo "No longer as found:$$changed" >&2; exit 1; }

.PHONY: emulators
emulators: tests/emulators/node_modules/.stamp ## DynamoDB Local and fauxqs (Node.js 20, Java 17)

.PHONY: validate
validate: $(VENV)/.stamp $(TOOL)/sam/requirements.txt ## sam validate --lint
	$(SAM) validate --lint --region us-east-1

.PHONY: build
build: $(VENV)/.stamp $(TOOL)/sam/requirements.txt ## sam build
	UV="$(CURDIR)/$(UV)" VIRTUAL_ENV="$(CURDIR)/$(VENV)" $(SAM) build $(BUILD_ARGS)

.PHONY: artefact
artefact: $(VENV)/.stamp emulators ## what is deployed, built for this machine and run; its sizes and times
	A2A_ARTEFACT=long $(BIN)/python -m pytest -rP $(ALL) tests/artefact

.PHONY: image
image: $(VENV)/.stamp ## the worker's image without Docker, for arm64, made and checked
	A2A_IMAGE=long $(BIN)/python -m pytest tests/infrastructure/test_fargate.py

.PHONY: dist
dist: $(VENV)/.stamp ## the wheel and the source archive, in dist/, without tests
	rm -rf dist
	$(UV) build --quiet --python $(BIN)/python --no-build-isolation
	@for list in "zipfile -l dist/*.whl" "tarfile -l dist/*.tar.gz"; do \
		if $(BIN)/python -m $$list | grep -E '(^|/)(tests|benchmarks)/'; then \
			echo "dist/ has tests: see [tool.hatch.build.targets] in pyproject.toml" >&2; exit 1; \
		fi; \
	done
	@ls dist

# The blanks of the owner are listed, and fail the check of a tag alone, which names its version.
.PHONY: release-check
release-check: dist docs $(TOOL)/release/requirements.txt ## all of a release but the upload: RELEASE=version for a tag; see docs/maintain/releasing.md
	$(BIN)/python -m release $(RELEASE)
	$(BIN)/python -m pytest -q tests/infrastructure/test_package.py
	$(MAKE) projects

.PHONY: projects
projects: $(VENV)/.stamp ## a project of each kind out of the wheel, and the wheel on each Python
	A2A_PROJECTS=long $(BIN)/python -m pytest $(ALL) tests/e2e/test_projects.py \
		tests/e2e/test_first_agent.py $(PROJECTS_ARGS)

.PHONY: lock
lock: $(VENV)/.stamp ## resolve the dependencies again
	$(UV) pip compile pyproject.toml --extra local --extra otel --group dev -c requirements/held.in $(LOCK) -o requirements/dev.txt
	$(UV) pip compile pyproject.toml --extra local -c requirements/dev.txt $(LOCK) -o requirements/local.txt
	$(UV) pip compile pyproject.toml --extra otel -c requirements/dev.txt $(LAMBDA_HAS) $(LOCK) -o requirements/runtime.txt
	$(BIN)/a2a-serverless lock
	$(UV) pip compile pyproject.toml --extra worker --extra otel -c requirements/dev.txt $(LOCK) -o requirements/worker.txt
	mkdir -p build && grep -o '^a2a-sdk==[0-9.]*' requirements/dev.txt > build/sdk.txt
	for name in $(FRAMEWORKS); do \
		$(UV) pip compile tests/foreign/$$name/requirements.in pyproject.toml -c build/sdk.txt $(LOCK) \
			-o tests/foreign/$$name/requirements.txt || exit; \
	done
	for name in $(ADAPTED) $(SERVING); do \
		$(UV) pip compile tests/foreign/$$name/requirements.in pyproject.toml --extra local \
			-c build/sdk.txt $(LOCK) -o tests/foreign/$$name/requirements.txt || exit; \
	done
	for name in $(WITH_OPENAI); do \
		pins=build/sdk.txt; [ $$name = with_openai_2 ] || pins=requirements/runtime.txt; \
		$(UV) pip compile tests/foreign/$$name/requirements.in pyproject.toml --extra local \
			-c $$pins $(LOCK) -o tests/foreign/$$name/requirements.txt || exit; \
	done
	for name in $(OLDER_CLIENT) $(SQL) $(DELEGATING); do \
		$(UV) pip compile tests/foreign/$$name/requirements.in $(LOCK) \
			-o tests/foreign/$$name/requirements.txt || exit; \
	done
	for name in $(TOOLS); do \
		$(UV) pip compile requirements/tools/$$name.in $(LOCK) -o requirements/tools/$$name.txt || exit; \
	done
	$(UV) pip compile requirements/tools/cloud.in $(subst 3.11,3.13,$(LOCK)) -o requirements/tools/cloud.txt
	for name in $(PEERS); do \
		$(UV) pip compile benchmarks/peers/requirements/$$name.in $(LOCK) \
			-o benchmarks/peers/requirements/$$name.txt || exit; \
	done

# One version of each package for all interpreters from 3.11 on, and the development lock constrains
# the others: what ships is what was tested. No index and no path is named in them.
# UPGRADE=--upgrade takes newer versions.
LOCK = --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
	--no-emit-index-url --no-annotate --no-header --quiet $(UPGRADE)

# What Lambda's Python runtime brings itself.
LAMBDA_HAS = $(addprefix --no-emit-package ,boto3 botocore s3transfer)

.PHONY: clean
clean: ## remove everything that the other targets made
	rm -rf $(VENV) .aws-sam build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf tests/emulators/node_modules

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(UV):
	$(find_python); "$$python" -m venv $(VENV)
	sed -n '/^uv==/,/[^\\]$$/p' requirements/dev.txt > $(VENV)/uv.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(VENV)/uv.txt

$(VENV)/.stamp: requirements/dev.txt pyproject.toml | $(UV)
	$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

# An environment of its own for the packages of a lock.
define own_environment
$(UV) venv --quiet --clear --python $(BIN)/python $(@D)
$(UV) pip sync --quiet --python $(@D)/bin/python --require-hashes $<
cp $< $@
endef

$(TOOL)/%/requirements.txt: requirements/tools/%.txt | $(UV)
	$(own_environment)

$(CLIENTS) $(PATTERNS): build/foreign/%/requirements.txt: tests/foreign/%/requirements.txt | $(UV)
	$(own_environment)

build/foreign/javascript/.stamp: $(wildcard tests/foreign/javascript/*) tests/foreign/javascript/.npmrc
	mkdir -p $(@D) && cp $^ $(@D)
	cd $(@D) && npm ci --prefer-offline && touch .stamp

# The emulated AWS runs on the Python of the functions, which are its children.
build/cloud/venv/requirements.txt: requirements/tools/cloud.txt | $(UV)
	@python=$$($(PYTHON_3_13)) || { \
		echo "make cloud needs Python 3.13, on which the functions run: install it." >&2; exit 2; \
	}; $(UV) venv --quiet --clear --python "$$python" $(@D)
	$(UV) pip sync --quiet --python $(@D)/bin/python --require-hashes $<
	cp $< $@

build/peers/%/requirements.txt: benchmarks/peers/requirements/%.txt | $(UV)
	$(own_environment)

tests/emulators/node_modules/.stamp: tests/emulators/package.json tests/emulators/package-lock.json
	cd tests/emulators && npm ci
	touch $@
