# `make` or `make help` lists the targets.
.DEFAULT_GOAL := help
