"""The engine's core against a model of a device and a virtual clock: what a policy does to latencies, in seconds."""
