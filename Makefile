# Only relative paths and `python -m`: neither make nor a script's first line bears a space in the path of the checkout.
PYTHON ?= python3
ARGS ?=
# The newest Python that is installed: django-ox needs 3.12.
BENCH_PYTHON ?= $(shell PYTHONPATH=.ci $(PYTHON) -c "import matrix; print([*matrix.find_pythons().values()][-1])")
PHOTOS ?=
WORKERS ?= 4
PG_BIN ?=
PY := .venv/bin/python
READY := .venv/.ready
PINS := .ci/constraints.txt
BENCH_PY := .venv-bench/bin/python
BENCH_READY := .venv-bench/.ready
PEERS := benchmarks/requirements.txt
# Two makes at once set up one after the other, where the system has flock.
ONE_AT_A_TIME := $(shell command -v flock >/dev/null 2>&1 && echo flock .venv.lock)

ifneq ($(PG_BIN),)
export JOBQUEUE_PG_BIN := $(PG_BIN)
endif

# Variables exported for another site must not reach the demo and the tests.
OURS := JOBQUEUE_PG_BIN JOBQUEUE_SAMPLES JOBQUEUE_ORDER JOBQUEUE_SEED JOBQUEUE_SEEDS
# With PYTHONDONTWRITEBYTECODE each of the hundreds of processes that the tests start would compile what it imports.
unexport DJANGO_SETTINGS_MODULE PYTHONDONTWRITEBYTECODE $(filter-out $(OURS),$(filter JOBQUEUE_%,$(.VARIABLES)))

.PHONY: help demo serve test test-slow test-all verify verify-orders bench-crashes bench bench-quick bench-goals bench-actors bench-wake bench-schedules bench-workflows cost flame load lint format translations matrix venv venv-bench clean

help:
	@echo "make demo     import photographs through the queue and show what happened (PHOTOS=folder: your own)"
	@echo "make serve    run the demo site and its executors until Ctrl-C"
	@echo "make test     run the fast tests, about four minutes (ARGS='-k admin -x' goes to pytest)"
	@echo "make test-slow  run the other tests: processes, plans, races, and the short forms of verification/"
	@echo "make test-all   run both"
	@echo "make verify   kill, freeze and cut off executors and servers for hours, and write docs/reliability-results.md"
	@echo "make verify-orders  run 2,000 orders of each race that has too many to run all"
	@echo "make bench-crashes  run crash campaigns against procrastinate and django-tasks-db, 15 minutes"
	@echo "make bench    measure this queue beside its peers, an hour and a half (make bench-quick: two minutes)"
	@echo "make bench-goals   compare plain tasks with pgqueuer and others, and print which goals are met, 25 minutes"
	@echo "make bench-actors  measure polls of actors per second beside the naive protocol (ARGS='--rounds 9')"
	@echo "make bench-wake    measure how soon an actor among a million is polled after its message"
	@echo "make bench-workflows  measure workflows of ten steps beside DBOS and absurd (ARGS='--absurd-sql FILE')"
	@echo "make bench-schedules  measure an idle executor beside 10,000 schedules, and how late tasks of ticks are"
	@echo "make cost     count what a plain task costs, and compare it with cost.toml (ARGS=--write: write cost.toml)"
	@echo "make flame    draw where an executor's time in Python goes while it drains tasks: docs/drain-flame.svg"
	@echo "make load     submit a thousand tasks over HTTP and see that none is lost (ARGS='-n 10000 -c 50')"
	@echo "make lint     check style, types, English, budgets and migrations"
	@echo "make format   let ruff format the code"
	@echo "make translations  collect the strings of jobqueue/ into its German and French catalogues, compile them, and name what is missing (needs gettext)"
	@echo "make matrix   run the suite on every Python and Django found (ARGS=... goes to pytest, CELLS='3.12-6.1')"
	@echo "make clean    remove what the above made: environments, caches, the demo's database"
	@echo
	@echo "WORKERS=0                             (test) one test after the other; 4 processes side by side otherwise"
	@echo "PYTHON=python3.12                     the Python of a new .venv"
	@echo "BENCH_PYTHON=python3.13               the Python of a new .venv-bench (default: the newest installed)"
	@echo "PG_BIN=/usr/lib/postgresql/15/bin     the PostgreSQL of tests and demo, in place of the embedded 18"
	@echo "DATABASE_URL=postgresql://...         (test) a server of yours, in place of a throw-away one"

demo: venv
	@$(PY) manage.py demo $(if $(PHOTOS),--photos "$(PHOTOS)")

serve: venv
	@$(PY) manage.py serve_demo

# Tests of one file run in one process, files side by side.
# A crash of a process ends the run: a new process would run the file again, and crash again, for ever.
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test: venv
	@$(PYTEST) -m "smoke or not slow" tests $(ARGS)

test-slow: venv
	@$(PYTEST) -m "slow and not smoke" verification tests $(ARGS)

test-all: test test-slow

verify: venv
	@$(PY) -m verification.faults $(ARGS)

verify-orders: venv
	@JOBQUEUE_SAMPLES=$(or $(JOBQUEUE_SAMPLES),2000) $(PY) -m pytest verification/interleavings/test_orders.py $(ARGS)

bench-crashes: venv-bench
	@$(BENCH_PY) -m benchmarks.peers.crashes $(ARGS)

bench: venv-bench
	@$(BENCH_PY) -m benchmarks.bench $(ARGS)

bench-quick: venv-bench
	@$(BENCH_PY) -m benchmarks.bench --quick $(ARGS)

bench-goals: venv-bench
	@$(BENCH_PY) -m benchmarks.bench --only goals --rounds 3 --idle 20 $(ARGS)

bench-actors: venv
	@$(PY) -m benchmarks.bench_actors $(ARGS)

bench-wake: venv
	@$(PY) -m benchmarks.wake $(ARGS)

bench-workflows: venv-bench
	@$(BENCH_PY) -m benchmarks.bench_workflows $(ARGS)

bench-schedules: venv
	@$(PY) -m benchmarks.bench_schedules $(ARGS)

cost: venv
	@$(PY) -m benchmarks.cost $(ARGS)

flame: venv-bench
	@$(BENCH_PY) -m benchmarks.flame $(ARGS)

load: venv
	@$(PY) -m tools.load_test $(ARGS)

lint: venv
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -m tools.check_english
	@$(PY) -m tools.check_budgets
	@DJANGO_SETTINGS_MODULE=tests.settings DATABASE_URL=sqlite://:memory: $(PY) manage.py makemigrations --check --dry-run

format: venv
	@$(PY) -m ruff check --fix-only .
	@$(PY) -m ruff format .

# -P: jobqueue/http/ must not hide the module of the same name.
translations: venv
	@cd jobqueue && ../$(PY) -P -m django makemessages --locale de --locale fr --add-location file --no-wrap --no-obsolete
	@cd jobqueue && ../$(PY) -P -m django compilemessages --verbosity 0
	@JOBQUEUE_RELEASE=1 $(PY) -m pytest -q -n 0 tests/unit/test_translations.py

matrix: venv
	@$(PY) .ci/matrix.py $(foreach cell,$(CELLS),--cell $(cell)) -- $(ARGS)

venv:
	@$(ONE_AT_A_TIME) $(MAKE) -s --no-print-directory $(READY)

$(READY): pyproject.toml $(PINS)
	@echo "Setting up .venv (a minute, once)"
	@$(PY) -c "" 2>/dev/null || $(PYTHON) -m venv --clear .venv
	@$(PY) -m pip install -qq --disable-pip-version-check --no-input -c $(PINS) -e ".[dev]"
	@touch $(READY)

venv-bench:
	@$(ONE_AT_A_TIME) $(MAKE) -s --no-print-directory $(BENCH_READY)

$(BENCH_READY): pyproject.toml $(PINS) $(PEERS)
	@echo "Setting up .venv-bench (a minute, once)"
	@$(BENCH_PY) -c "" 2>/dev/null || $(BENCH_PYTHON) -m venv --clear .venv-bench
	@$(BENCH_PY) -m pip install -qq --disable-pip-version-check --no-input -c $(PINS) -r $(PEERS) -e ".[demo]"
	@touch $(BENCH_READY)

clean:
	@if [ -x $(PY) ]; then $(PY) -m tools.postgres --remove; fi
	rm -rf .venv .venv.lock .venv-bench .venv-matrix .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -prune -exec rm -rf {} +
