# Kvik's images, by docker or buildah, whichever is there. BASE names another base image, IMAGE_PREFIX another registry.
IMAGE_TOOL := $(if $(wildcard $(PYTHON)),$(PYTHON),python3) -m images

##@ Images
.PHONY: images image-operator image-engine-demo image-engine-cpu image-engine-gpu
images: ## All of them: operator, and the engine as demo, cpu and gpu (the last is 6 GB)
	@$(IMAGE_TOOL) operator demo cpu gpu

image-operator: ## kvik/operator
	@$(IMAGE_TOOL) operator

image-engine-demo: ## kvik/engine for CPUs with the embedded model
	@$(IMAGE_TOOL) demo

image-engine-cpu: ## kvik/engine for CPUs
	@$(IMAGE_TOOL) cpu

image-engine-gpu: ## kvik/engine with CUDA and Triton
	@$(IMAGE_TOOL) gpu
