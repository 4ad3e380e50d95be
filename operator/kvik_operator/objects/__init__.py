"""Builders of the Kubernetes objects that a pool owns: pure functions, one child kind a file."""
