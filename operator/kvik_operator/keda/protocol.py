"""KEDA's wire contract: messages and services of externalscaler.proto, which is read when this module is."""

from typing import Any, Final

import grpc

messages: Any
services: Any
messages, services = grpc.protos_and_services("kvik_operator/keda/externalscaler.proto")

METRIC: Final = "kvik_desired_replicas"
TARGET: Final = 1
"""Of METRIC for each pod: as many pods as it says."""
