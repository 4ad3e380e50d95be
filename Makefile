# Everything this repository does. `make` alone lists the targets; each one does the set-up that it needs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules
PYTHON := .venv/bin/python
TIERS := $(PYTHON) scripts/tiers.py

-include tests/cluster/cluster.mk
-include images/images.mk

##@ Start here
.PHONY: help demo demo-down serve
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n\033[1m%s\033[0m\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  \033[36m%-18s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## A local cluster, the operator, a small pool, and an answer from it
	@$(PYTHON) -m scripts.demo

demo-down: setup ## Remove the demo: pool, releases and namespaces (cluster-down removes the cluster)
	@$(PYTHON) -m scripts.demo down

serve: setup ## The engine alone, on the embedded model, at 127.0.0.1:8000
	@echo "When it says ready, ask it from another terminal:"
	@echo "  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\"
	@echo "    -d '{\"model\": \"smollm2-135m-instruct\", \"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]}'"
	@.venv/bin/kvik serve demo --host 127.0.0.1

##@ Develop
.PHONY: setup fmt lint bench bench-peers claims scoreboard scaling-report kernels-report
setup: ## The environment .venv with everything in it
	@scripts/setup.sh

fmt: setup ## Format the code, mend what ruff can mend, list the files
	@.venv/bin/ruff check --quiet --fix-only .
	@.venv/bin/ruff format .
	@$(PYTHON) scripts/architecture.py

lint: setup ## Format, rules, types, imports, locks, pages, YAML, shell, charts
	@scripts/lint.sh

bench: setup ## Measure the engine on this machine
	@$(PYTHON) -m bench.core_speed
	@$(PYTHON) -m bench.sampling_share
	@$(PYTHON) -m bench.linear_paths
	@$(PYTHON) -m bench.forward_passes
	@$(PYTHON) -m bench.cpu_attention
	@$(PYTHON) -m bench.kv_quality
	@$(PYTHON) -m bench.weight_quality
	@$(PYTHON) -m bench.figures
	@$(PYTHON) -m bench.generator

bench-peers: setup ## Measure Kvik beside llama.cpp, and beside PEER_URL: docs/performance.md
	@scripts/setup_peers.sh
	@$(PYTHON) -m bench.peers $(if $(PEER_URL),--peer '$(PEER_URL)')

claims: setup ## Try what Kvik says of itself: docs/claims.md
	@$(PYTHON) -m bench.claims

scoreboard: setup ## Try on the local cluster what Kvik promises of changes: docs/reliability.md
	@CLUSTER=local $(PYTHON) -m bench.scoreboard

scaling-report: setup ## Compare ways to scale on simulated traces: docs/scaling-compared.md
	@$(PYTHON) -m bench.scaling

kernels-report: setup ## Compile every Triton kernel for four GPUs and table what they take: docs/kernels.md
	@$(PYTHON) -m scripts.kernels_report

##@ Test
.PHONY: test test-all test-unit test-kernels test-integration test-e2e triton36
triton36: setup
	@scripts/setup_triton36.sh

test: triton36 ## Lint, then every tier without its long tests
	@$(TIERS) lint unit property contract kernels oracle integration faults e2e

test-all: triton36 ## Every tier with its long tests
	@$(TIERS) --long lint unit property contract kernels oracle integration faults e2e

test-unit: setup ## Pure logic, property tests and the contract between operator and engine
	@$(TIERS) unit property contract

test-kernels: triton36 ## Kernels against their plain truth, and compiled without a GPU
	@$(TIERS) kernels

test-integration: setup ## The oracle, engine processes, and faults on a control plane without a kubelet
	@$(TIERS) oracle integration faults

test-e2e: setup ## The whole product on the real cluster
	@$(TIERS) e2e
