"""What the runner reads of the machine: threads, memory, device, dtype. Folders stand in for /sys and /proc."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.attention.triton_backend import TritonBackend
from kvik_engine.errors import StartError, StartReason
from kvik_engine.layers.elementwise import CpuElementwise, TorchElementwise, TritonElementwise
from kvik_engine.models.config import LatentAttention
from kvik_engine.runner import devices, dtypes
from kvik_engine.runner.devices import choose_backend, choose_device, choose_elementwise
from kvik_engine.runner.dtypes import choose_dtype
from kvik_engine.runner.load import check_attention
from kvik_engine.runner.memory import MemoryUse, PeakMemory, cgroup_memory, machine_memory
from kvik_engine.runner.threads import usable_threads
from kvik_kernels.cpu.library import Library, LibraryUnavailable, load_library
from kvik_kernels.device import Device
from tests.support.cpu_kernels import needs_kernels
from tests.support.tiny_model import TINY

CPU = torch.device("cpu")
MIB = 1 << 20


def write(root: Path, **files: str) -> Path:
    """Files by path with `__` for `/`."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("quota", "threads"),
    [("max 100000", 8), ("200000 100000", 2), ("30000 100000", 1), ("150000 100000", 2), ("9900000 100000", 8)],
    ids=["no limit", "two", "0.3 of one", "one and a half", "more than there are"],
)
def test_threads_follow_the_quota_rounded_up(tmp_path: Path, quota: str, threads: int) -> None:
    (tmp_path / "cpu.max").write_text(quota)

    assert usable_threads(tmp_path, cpus=8, environ={}) == threads


def test_threads_follow_a_quota_of_the_first_cgroups(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir(exist_ok=True)
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("300000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")

    assert usable_threads(tmp_path, cpus=8, environ={}) == 3
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert usable_threads(tmp_path, cpus=8, environ={}) == 8


@pytest.mark.parametrize(("value", "threads"), [("1", 1), ("64", 8), ("", 8), ("many", 8), ("0", 8)])
def test_omp_num_threads_lowers_and_never_raises(tmp_path: Path, value: str, threads: int) -> None:
    assert usable_threads(tmp_path, cpus=8, environ={"OMP_NUM_THREADS": value}) == threads


def test_memory_is_the_cgroups_limit_and_working_set(tmp_path: Path) -> None:
    root = write(
        tmp_path / "v2",
        **{
            "sys__fs__cgroup__memory.max": str(2500 * MIB),
            "sys__fs__cgroup__memory.current": str(900 * MIB),
            "sys__fs__cgroup__memory.stat": f"anon 1\ninactive_file {300 * MIB}\nactive_file 5\n",
        },
    )
    assert cgroup_memory(root) == MemoryUse(2500 * MIB, 600 * MIB)


def test_memory_of_the_first_cgroups_is_read_too(tmp_path: Path) -> None:
    folder = tmp_path / "sys/fs/cgroup/memory"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(1000 * MIB))
    (folder / "memory.usage_in_bytes").write_text(str(500 * MIB))
    (folder / "memory.stat").write_text(f"cache 0\ntotal_inactive_file {100 * MIB}\n")

    assert cgroup_memory(tmp_path) == MemoryUse(1000 * MIB, 400 * MIB)
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712")
    assert cgroup_memory(tmp_path) is None


def test_without_a_limit_memory_is_the_machines(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        **{
            "sys__fs__cgroup__memory.max": "max",
            "sys__fs__cgroup__memory.current": "5",
            "sys__fs__cgroup__memory.stat": "inactive_file 1",
            "proc__meminfo": "MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   20000000 kB\n",
        },
    )

    assert cgroup_memory(root) is None
    assert machine_memory(root) == MemoryUse(24_000_000 << 10, 4_000_000 << 10)


def test_what_is_used_includes_the_peak_of_the_largest_step(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        **{
            "sys__fs__cgroup__memory.max": str(2000 * MIB),
            "sys__fs__cgroup__memory.current": str(800 * MIB),
            "sys__fs__cgroup__memory.stat": "inactive_file 0",
            "proc__self__status": f"VmHWM:\t{900 << 10} kB\nVmRSS:\t{650 << 10} kB\n",
            "proc__self__clear_refs": "",
        },
    )
    use = PeakMemory(CPU, root).read()

    assert use == MemoryUse(2000 * MIB, (800 + 250) * MIB)
    assert (root / "proc/self/clear_refs").read_text() == "5", "the peak of loading is forgotten"


def test_the_real_peak_is_at_least_what_was_allocated_in_between() -> None:
    peak = PeakMemory(CPU)
    torch.ones(64 * MIB // 4).sum()
    use = peak.read()

    assert use.total > use.used > 64 * MIB


def test_an_accelerator_that_is_not_there_is_an_error_and_never_a_fall_back() -> None:
    if torch.cuda.is_available():
        assert choose_device("cuda").type == "cuda"
        return
    with pytest.raises(StartError) as caught:
        choose_device("cuda")

    assert caught.value.reason is StartReason.ACCELERATOR_NOT_VISIBLE


def test_auto_says_what_it_chose(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    device = choose_device("auto")

    assert device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert f"device {device}" in caplog.text
    assert choose_device("cpu") == CPU


@pytest.mark.parametrize(("wanted", "name"), [("auto", "cpu"), ("cpu", "cpu"), ("reference", "reference")])
def test_a_cpu_runs_its_own_backend_or_the_reference(wanted: str, name: str) -> None:
    assert choose_backend(wanted, CPU, TINY, torch.float32, KVFormats.of("fp32")).name == name


@pytest.mark.parametrize("name", ["auto", "reference"])
@pytest.mark.parametrize("key", ["int8", "fp8"])
def test_every_backend_of_a_cpu_serves_quantised_caches(name: str, key: str) -> None:
    formats = KVFormats.of("fp32", key, "int8")

    check_attention(TINY, choose_backend(name, CPU, TINY, torch.float32, formats), formats)


@pytest.mark.parametrize(
    ("formats", "flag"),
    [
        (KVFormats.of("bf16", "fp8"), "--kv-key-dtype=fp8"),
        (KVFormats.of("bf16", "int8", "fp8"), "--kv-value-dtype=fp8"),
    ],
    ids=["keys", "values"],
)
def test_a_gpu_without_fp8_refuses_it_and_says_what_it_has(formats: KVFormats, flag: str) -> None:
    with pytest.raises(StartError, match=f"{flag} does not run .*: auto, int8, int4 do") as caught:
        check_attention(TINY, TritonBackend(fp8=False), formats)

    assert caught.value.reason is StartReason.CONFIG_INVALID
    check_attention(TINY, TritonBackend(fp8=True), formats)


@pytest.mark.parametrize(
    ("architecture", "has"),
    [
        ("sm_80", False),
        ("sm_86", False),
        ("sm_89", True),
        ("sm_90", True),
        ("sm_120", True),
        ("gfx90a", False),
        ("gfx942", True),
        ("gfx950", True),
    ],
)
def test_which_devices_convert_fp8(architecture: str, has: bool) -> None:
    device = Device(architecture, 100)
    assert device.has_fp8 == has
    if not has:
        with pytest.raises(TypeError, match=rf"k_cache: .* needs sm_89 or newer.*{architecture} has int8"):
            device.require_dtype("k_cache", torch.float8_e4m3fn)


@needs_kernels
def test_heads_that_the_kernels_serve_are_left_to_them_and_info_names_their_instruction_set() -> None:
    model = replace(TINY, head_dim=64)
    best = load_library().best.name.lower()

    assert choose_backend("auto", CPU, model, torch.bfloat16, KVFormats.of("bf16")).name == f"cpu {best}"


@pytest.mark.parametrize("reason", ["this CPU has no AVX2", "they are not built"])
def test_without_kernels_torch_attends_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    def unavailable() -> Library:
        raise LibraryUnavailable(reason)

    monkeypatch.setattr(devices, "load_library", unavailable)

    assert choose_backend("auto", CPU, replace(TINY, head_dim=64), torch.bfloat16, KVFormats.of("bf16")).name == "cpu"
    assert [record.message for record in caplog.records] == [
        f"attention of short rows: by torch: the kernels cannot be used: {reason}"
    ]


@needs_kernels
def test_work_between_products_is_left_to_kernels_but_for_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unavailable() -> Library:
        raise LibraryUnavailable("not built")

    assert isinstance(choose_elementwise("auto", CPU), CpuElementwise)
    assert isinstance(choose_elementwise("reference", CPU), TorchElementwise)
    assert isinstance(choose_elementwise("auto", torch.device("cuda")), TritonElementwise)
    assert isinstance(choose_elementwise("reference", torch.device("cuda")), TorchElementwise)
    monkeypatch.setattr(devices, "load_library", unavailable)
    assert isinstance(choose_elementwise("auto", CPU), TorchElementwise)


def test_latent_attention_and_odd_heads_are_left_to_torch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    latent = LatentAttention(kv_rank=64, query_rank=None, nope_dim=32, rope_dim=16, value_dim=32)

    assert (
        choose_backend("auto", CPU, replace(TINY, head_dim=64, latent=latent), torch.float32, KVFormats.of("fp32")).name
        == "cpu"
    )
    assert choose_backend("auto", CPU, replace(TINY, head_dim=100), torch.float32, KVFormats.of("fp32")).name == "cpu"
    assert "latent" in caplog.text
    assert "heads of 100" in caplog.text


@pytest.mark.parametrize("wanted", ["triton", "flash"])
def test_a_backend_that_does_not_run_there_is_refused(wanted: str) -> None:
    with pytest.raises(StartError) as caught:
        choose_backend(wanted, CPU, TINY, torch.float32, KVFormats.of("fp32"))

    assert caught.value.reason is StartReason.CONFIG_INVALID


@pytest.mark.parametrize(("fp32", "bf16", "name"), [(0.001, 0.007, "fp32"), (0.007, 0.001, "bf16")])
def test_the_faster_dtype_is_taken_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fp32: float, bf16: float, name: str
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(dtypes, "_product_seconds", lambda dtype, *_: fp32 if dtype == torch.float32 else bf16)

    assert choose_dtype("auto", CPU, 64, 128) == name
    assert f"dtype {name}" in caplog.text


def test_bf16_counts_by_the_quickest_order_of_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only torch's own products of bf16 are slow, fp32 would be several times as slow as what layers do."""
    slow, quick, multiplied = object(), object(), set[object]()

    def seconds(products: Sequence[object], *_: object) -> float:
        multiplied.update(products)
        return 0.001 if quick in products else 0.007

    monkeypatch.setattr(dtypes, "multiplies_bf16", lambda: True)
    monkeypatch.setattr(dtypes, "candidates", lambda _: {"plain": lambda _: slow, "panels": lambda _: quick})
    monkeypatch.setattr(dtypes, "_mean_seconds", seconds)

    assert choose_dtype("auto", CPU, 64, 128) == "bf16"
    assert {slow, quick} < multiplied


@pytest.mark.parametrize(("supported", "name"), [(True, "bf16"), (False, "fp16")])
def test_auto_on_a_gpu_is_bf16_where_it_has_that(supported: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda *, including_emulation: supported or including_emulation
    )
    assert choose_dtype("auto", torch.device("cuda"), 64, 128) == name


def test_a_pinned_dtype_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "_product_seconds", lambda *_: pytest.fail("measured"))

    assert [choose_dtype(name, CPU, 64, 128) for name in ("fp32", "bf16", "fp16")] == ["fp32", "bf16", "fp16"]


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(StartError) as caught:
        choose_dtype("int3", CPU, 64, 128)

    assert caught.value.reason is StartReason.CONFIG_INVALID


def test_the_measurement_itself_runs_and_picks_one_of_both() -> None:
    assert choose_dtype("auto", CPU, 32, 64) in ("fp32", "bf16")
