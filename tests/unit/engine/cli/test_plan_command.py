"""`kvik plan`: what it reads, prints and refuses, without torch and without a network."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvik_engine.capacity.gpus import GPUS
from kvik_engine.cli import main
from kvik_engine.exits import EXIT_START_ERROR
from kvik_engine.provenance import PROVENANCE_FILE
from tests.support.model_files import CONFIG, LLAMA_METADATA, GGUFFile, write_safetensors_model

PAGE = Path(__file__).resolve().parents[4] / "docs/plan.md"
ENOUGH = ("--memory", "1GiB", "--dtype", "fp32")


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def planned(config_file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    arguments = ("--gpu", "h100", "--price-per-hour", "2.5", "--shared-prefix", "32", *ENOUGH)
    assert main(["plan", str(config_file), "--json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == EXIT_START_ERROR
    output = capsys.readouterr()
    assert output.out == ""
    return output.err


def keys(value: Any, path: str = "") -> set[str]:
    """Dotted names of everything in a JSON object; kinds, dtypes and types of tensors count as one."""
    if isinstance(value, list):
        return set().union(*(keys(item, path + "[]") for item in value))
    if not isinstance(value, dict) or path.endswith(("by_kind", "by_type")):
        return {path}
    return set().union(*(keys(item, f"{path}.{key}" if path else key) for key, item in value.items()))


def test_the_page_describes_every_key_of_the_json_and_no_other(
    planned: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_safetensors_model(folder)
    assert main(["plan", str(folder), "--json", *ENOUGH]) == 0
    stored = json.loads(capsys.readouterr().out)["model"]["stored"]
    found = keys({**planned, "model": {**planned["model"], "stored": stored}})

    assert found == set(re.findall(r"^\| `([a-z_.\[\]]+)` \|", PAGE.read_text(), re.MULTILINE))


def test_the_page_lists_the_gpus(planned: dict[str, Any]) -> None:
    assert ", ".join(f"`{name}`" for name in GPUS) in PAGE.read_text().replace("\n", " ")


def test_a_config_alone_is_enough(planned: dict[str, Any]) -> None:
    assert planned["model"]["parameters"] == 24 * 16 + 16 + 2 * (2 * 16 + 16 * 4 * 2 * (4 + 2) + 3 * 16 * 32)
    assert planned["model"]["stored"] is None
    assert planned["rank"]["kv_bytes_per_token"] == 2 * 2 * 2 * 4 * 4
    assert planned["wanted"]["context"] == 64, "the model's own"


def test_people_get_a_table(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(config_file), "--gpu", "l4", "--price-per-hour", "0.8", "--context", "64", *ENOUGH]) == 0
    text = capsys.readouterr().out

    for part in ("GQA* 2 KV heads", "served context", "128 bytes a token", "Roofline on l4", "per million output"):
        assert part in text
    assert "too little" not in text


def test_too_few_requests_say_what_would_be_enough(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(config_file), "--concurrency", "1000000", *ENOUGH]) == 0
    output = capsys.readouterr().out

    assert "too little for 1000000" in output
    assert "would be enough" in output


def test_a_folder_of_safetensors_says_what_lies_in_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_safetensors_model(tmp_path)
    assert main(["plan", str(tmp_path), "--json", *ENOUGH]) == 0
    model = json.loads(capsys.readouterr().out)["model"]

    assert model["stored"]["elements"] == model["parameters"]
    assert model["stored"]["bytes"] == 4 * model["parameters"]


def test_a_gguf_says_what_its_tensors_take_and_what_they_become(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = [("token_embd.weight", (32, 64), 2, 0), ("output_norm.weight", (32,), 0, 64 * 18)]
    file = tmp_path / "tiny.gguf"
    file.write_bytes(GGUFFile(metadata=LLAMA_METADATA, tensors=tensors, data=bytes(64 * 18 + 128)).encode())
    assert main(["plan", str(file), *ENOUGH]) == 0
    assert "gguf: 1.25 KiB of tensors (F32 128 B, Q4_0 1.12 KiB)" in capsys.readouterr().out


def test_a_truncated_gguf_is_the_engines_own_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.gguf"
    tensors = [("token_embd.weight", (32, 64), 2, 0)]
    file.write_bytes(GGUFFile(metadata=LLAMA_METADATA, tensors=tensors, data=bytes(64)).encode())

    assert "ModelInvalid" in refusal(capsys, str(file), *ENOUGH)


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (("--memory", "lots"), "ConfigInvalid: --memory: 'lots' is not a size such as 256Mi"),
        (("--memory", "1GiB", "--gpu", "h1000"), "ConfigInvalid: --gpu: 'h1000' is none of t4, a10"),
        (("--memory", "1GiB", "--context", "-5"), "ConfigInvalid: --context"),
        (("--memory", "1GiB", "--concurrency", "0"), "ConfigInvalid: --concurrency"),
        (("--memory", "1GiB", "--dtype", "int3"), "ConfigInvalid: --dtype"),
        (("--memory", "1GiB", "--kv-key-dtype", "int3"), "ConfigInvalid: --kv-key-dtype"),
        (("--memory", "1GiB", "--block-tokens", "24"), "ConfigInvalid: --block-tokens: 24 is no power of two"),
        (("--memory", "1GiB", "--tensor-parallel", "3"), "ConfigInvalid: --tensor-parallel: 4 attention heads"),
        (("--memory", "1GiB", "--memory-fraction", "1.5"), "ConfigInvalid: --memory-fraction"),
        (("--memory", "1GiB", "--price-per-hour", "free"), "ConfigInvalid: --price-per-hour"),
        (("--memory", "1GiB", "--price-per-hour", "2"), "ConfigInvalid: --price-per-hour needs --gpu"),
        ((), "ConfigInvalid: give --memory, or --gpu"),
        (("--memory", "1MiB"), "InsufficientMemory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_nonsense_names_the_flag(
    config_file: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], want: str
) -> None:
    assert want in refusal(capsys, str(config_file), *arguments)


@pytest.mark.parametrize(
    ("content", "want"),
    [
        ('{"architectures": ["MambaForCausalLM"]', "ModelInvalid"),
        (json.dumps({**CONFIG, "num_hidden_layers": 10**9}), "ModelInvalid: config.json: num_hidden_layers"),
        (json.dumps({**CONFIG, "hidden_size": "wide"}), "ModelInvalid: config.json: hidden_size"),
        (json.dumps({**CONFIG, "architectures": ["MambaForCausalLM"]}), "supported are LlamaForCausalLM"),
        ("[" * 100_000, "ModelInvalid"),
        (" " * (5 << 20), "ModelInvalid"),
    ],
    ids=["no JSON", "too many layers", "a text", "another architecture", "deep", "long"],
)
def test_a_hostile_config_gets_the_bounded_readers_errors(
    config_file: Path, capsys: pytest.CaptureFixture[str], content: str, want: str
) -> None:
    config_file.write_text(content)
    assert want in refusal(capsys, str(config_file), *ENOUGH)


def test_a_folder_without_a_model_is_said_to_have_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds neither config.json nor" in refusal(capsys, str(tmp_path), *ENOUGH)
    assert "does not exist" in refusal(capsys, str(tmp_path / "nowhere"), *ENOUGH)


def test_a_model_of_the_hub_is_read_from_the_cache_and_never_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "hf://org/name@main"
    arguments = (source, "--cache-dir", str(tmp_path), *ENOUGH)
    said = refusal(capsys, *arguments)
    assert "nothing is fetched here: `kvik model pull hf://org/name@main` does; or give its config.json" in said

    folder = tmp_path / "models/org--name@main"
    folder.mkdir(parents=True)
    write_safetensors_model(folder)
    (folder / PROVENANCE_FILE).write_text("{}")
    assert main(["plan", *arguments]) == 0
    assert capsys.readouterr().out.startswith("name: LlamaForCausalLM")


def test_no_torch_and_no_network_library_is_loaded(config_file: Path) -> None:
    script = (
        "import sys\n"
        "from kvik_engine.cli import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "found = {'torch', 'numpy', 'gguf', 'transformers', 'huggingface_hub', 'aiohttp'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    command = [sys.executable, "-c", script, "plan", str(config_file), *ENOUGH]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
