"""What is handed to the C++ kernels: the structs of their headers, field by field. Loading compares sizes."""

from __future__ import annotations

import ctypes

SPLIT_TOKENS = 256
"""`kSplitTokens`: a query's past is split into so many tokens, by its own length alone."""
QUERY_NUMBERS = 4
"""int64 fields of `struct Query`."""
PANEL_OUTPUTS = 32
"""`kPanelOutputs`: outputs side by side in a weight's panel."""


class Queries(ctypes.Structure):
    """`struct Queries`."""

    _fields_ = (
        ("queries", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        *(
            (name, ctypes.c_int64)
            for name in ("table_stride", "count", "splits", "kv_heads", "group", "width", "block_tokens")
        ),
        *((name, ctypes.c_int64) for name in ("dtype", "key_dtype", "value_dtype")),
        ("partials", ctypes.c_void_p),
        ("pending", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
    )


class Layer(ctypes.Structure):
    """`struct Layer`."""

    _fields_ = (
        ("query", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("query_strides", ctypes.c_int64 * 2),
        ("key_strides", ctypes.c_int64 * 3),
        ("value_strides", ctypes.c_int64 * 3),
        ("out_strides", ctypes.c_int64 * 2),
        ("key_scales", ctypes.c_void_p),
        ("value_scales", ctypes.c_void_p),
        ("key_scale_strides", ctypes.c_int64 * 2),
        ("value_scale_strides", ctypes.c_int64 * 2),
        ("scale", ctypes.c_float),
    )


class Writes(ctypes.Structure):
    """`struct Writes`."""

    _fields_ = (
        ("slots", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("tokens", "heads", "width", "block_tokens")),
        *((name, ctypes.c_int64) for name in ("dtype", "key_dtype", "value_dtype")),
    )


class NewTokens(ctypes.Structure):
    """`struct NewTokens`."""

    _fields_ = (
        ("key", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("new_key_strides", ctypes.c_int64 * 2),
        ("new_value_strides", ctypes.c_int64 * 2),
        ("key_strides", ctypes.c_int64 * 3),
        ("value_strides", ctypes.c_int64 * 3),
        ("key_scales", ctypes.c_void_p),
        ("value_scales", ctypes.c_void_p),
        ("key_scale_strides", ctypes.c_int64 * 2),
        ("value_scale_strides", ctypes.c_int64 * 2),
    )


class Product(ctypes.Structure):
    """`struct Product` of products.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("panels", ctypes.c_void_p),
        ("pairs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("bias", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_dtype", ctypes.c_int64),
        ("threads", ctypes.c_int64),
    )


class Int8Product(ctypes.Structure):
    """`struct Int8Product` of products_int8.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("x_stride", "dtype", "rows", "inputs")),
        *((name, ctypes.c_void_p) for name in ("panels", "scales", "shifts")),
        ("outputs", ctypes.c_int64),
        ("bias", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_dtype", ctypes.c_int64),
        ("bytes", ctypes.c_void_p),
        ("padded", ctypes.c_int64),
        ("row_scales", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
    )


class Norm(ctypes.Structure):
    """`struct Norm` of elementwise.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "addend", "weight", "out")),
        *((name, ctypes.c_int64) for name in ("dtype", "rows", "width")),
        ("threads", ctypes.c_int64),
        ("epsilon", ctypes.c_float),
    )


class Rotation(ctypes.Structure):
    """`struct Rotation` of elementwise.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("dtype", "token_stride", "head_stride", "rows", "heads", "half")),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
    )


class Gate(ctypes.Structure):
    """`struct Gate` of elementwise.h."""

    _fields_ = (
        ("gate_up", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("dtype", "activation", "rows", "width")),
        ("threads", ctypes.c_int64),
    )


class Call(ctypes.Structure):
    """`struct Call` of calls.h."""

    _fields_ = (
        ("kernel", ctypes.c_int64),
        ("instruction_set", ctypes.c_int64),
        ("step", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
    )


class Screen(ctypes.Structure):
    """`struct Screen` of screen.h."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("tokens", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("places", ctypes.c_void_p),
        ("key", ctypes.c_uint64),
        *((name, ctypes.c_float) for name in ("top", "factor", "slack")),
    )


class Floor(ctypes.Structure):
    """`struct Floor` of filters.h."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("scratch", ctypes.c_void_p),
        ("enough", ctypes.c_double),
        ("top", ctypes.c_float),
        ("by_mass", ctypes.c_int32),
    )


class Kept(ctypes.Structure):
    """`struct Kept` of filters.h."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("tokens", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("kept_values", ctypes.c_void_p),
        ("kept_tokens", ctypes.c_void_p),
        ("floor", ctypes.c_float),
    )


def sizes() -> dict[str, int]:
    """By name in the headers, in the order in which the library tells its own."""
    structs = (Queries, Layer, Writes, NewTokens, Product, Norm, Rotation, Gate, Screen, Floor, Kept, Int8Product, Call)
    return {
        "Query": QUERY_NUMBERS * ctypes.sizeof(ctypes.c_int64),
        **{each.__name__: ctypes.sizeof(each) for each in structs},
        "kSplitTokens": SPLIT_TOKENS,
        "kPanelOutputs": PANEL_OUTPUTS,
    }
