"""Our table of GGML types against the gguf package's own."""

import gguf
import pytest

from kvik_engine.weights.gguf_tensors import READABLE, UNREADABLE

TYPES = {kind.value: kind for kind in gguf.GGMLQuantizationType}


@pytest.mark.parametrize("number", READABLE, ids=lambda number: READABLE[number].name)
def test_a_type_has_the_name_and_sizes_that_the_gguf_package_gives(number: int) -> None:
    ours = READABLE[number]

    assert ours.name == TYPES[number].name
    assert (ours.elements, ours.bytes) == gguf.GGML_QUANT_SIZES[TYPES[number]]


def test_every_other_type_that_exists_is_known_by_its_name() -> None:
    assert {number: kind.name for number, kind in TYPES.items() if number not in READABLE} == UNREADABLE
