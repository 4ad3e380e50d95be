"""The page that scripts.kernels_report makes of what aot printed."""

from typing import Any

from scripts.kernels_report import page


def line(kernel: str, target: str, kept: str = "plain", *, registers: int, spilled: int = 0) -> dict[str, Any]:
    return {
        "variant": {"kernel": kernel, "target": target, "kept": kept},
        "registers": registers,
        "spilled_bytes": spilled,
        "shared_bytes": 20480,
        "triton": "3.9.0",
    }


def test_each_way_to_keep_keys_and_values_has_a_table_of_kernels_by_target() -> None:
    text = page(
        [
            line("decode", "sm_90", registers=65),
            line("decode", "sm_80", registers=96, spilled=8),
            line("reduce", "sm_90", registers=39),
            line("decode", "sm_90", "int4", registers=137),
        ]
    )

    assert "with triton 3.9.0 for" in text
    assert text.partition("## Keys and values as they are computed\n")[2] == (
        "| Kernel | sm_80 | sm_90 |\n"
        "|---|---|---|\n"
        "| `decode` | 96 / 8 / 20,480 | 65 / 0 / 20,480 |\n"
        "| `reduce` |  | 39 / 0 / 20,480 |\n"
        "\n## Keys and values in int4\n"
        "| Kernel | sm_90 |\n"
        "|---|---|\n"
        "| `decode` | 137 / 0 / 20,480 |\n"
    )
