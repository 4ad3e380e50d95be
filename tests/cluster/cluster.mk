# The cluster for demo and e2e tests. CLUSTER=local|kind|existing; without it kind where a Docker engine answers, else local.
CLUSTER_TOOL := $(if $(wildcard $(PYTHON)),$(PYTHON),python3) -m tests.cluster

##@ Cluster
.PHONY: cluster-up cluster-down
cluster-up: ## Start the cluster, or find it running; prints its KUBECONFIG. NODES=2: with a second node
	@$(CLUSTER_TOOL) up $(if $(NODES),--nodes $(NODES))

cluster-down: ## Stop it and remove all its traces (builds and images stay cached)
	@$(CLUSTER_TOOL) down
