"""Models of devices: what a step costs, and how much KV memory there is."""

from __future__ import annotations

from dataclasses import dataclass

from kvik_engine.step import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds of a step, linear in what it computes and reads."""

    step: float
    """Whatever is computed: reading the weights, launching, the host's own work."""
    prefill_token: float
    decode_row: float
    kv_token: float
    """Per token of KV that a row's attention reads, once a step however many tokens of the row are computed."""

    def seconds(self, plan: StepPlan) -> float:
        decode_rows = prefill_tokens = kv_tokens = 0
        for work in plan.work:
            kv_tokens += work.start + work.length
            if work.from_last_sample:
                decode_rows += 1
            else:
                prefill_tokens += work.length
        return (
            self.step + self.prefill_token * prefill_tokens + self.decode_row * decode_rows + self.kv_token * kv_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device with a loaded model. `kind` decides the class defaults, as `--device` does."""

    name: str
    kind: str
    cost: CostModel
    kv_bytes_per_token: int
    context: int
    memory_bytes: int
    used_bytes: int
    """By weights and activations."""
    host_bytes: int | None
    """Of the host, for swap space beside an accelerator; None where the device's memory is the host's."""
    copy_bytes_per_second: float
    """Between the device's memory and the host's, one way."""

    def seconds(self, plan: StepPlan, block_bytes: int) -> float:
        """Of a step: its copies to and from the host, then what it computes."""
        moved = len(plan.swap_outs) + len(plan.swap_ins)
        return self.cost.seconds(plan) + moved * block_bytes / self.copy_bytes_per_second


DEMO_CPU = Device(
    name="demo-cpu",
    kind="cpu",
    cost=CostModel(step=0.1, prefill_token=1.6e-3, decode_row=9e-3, kv_token=3e-5),
    kv_bytes_per_token=23040,
    context=8192,
    memory_bytes=2500 << 20,
    used_bytes=1500 << 20,
    host_bytes=None,
    copy_bytes_per_second=2.8e9,
)
"""SmolLM2-135M in bf16 on one busy CPU core: least squares over 196 steps of 1 to 12 rows, and the median of 20 times
512 copies of one block of KV (docs/simulator.md)."""

H100_8B = Device(
    name="h100-8b",
    kind="gpu",
    cost=CostModel(step=0.0065, prefill_token=3.3e-5, decode_row=1e-5, kv_token=4.9e-8),
    kv_bytes_per_token=131072,
    context=8192,
    memory_bytes=80 << 30,
    used_bytes=18 << 30,
    host_bytes=128 << 30,
    copy_bytes_per_second=50e9,
)
"""A Llama-3-8B in bf16 on one H100 SXM, on paper: 16 GB of weights and 128 KiB of KV a token at 80 % of 3.35 TB/s, 16
GFLOP a token at half of 989 TFLOP/s, copies at 80 % of the 63 GB/s of PCIe 5. No GPU was measured."""

DEVICES = {device.name: device for device in (DEMO_CPU, H100_8B)}
