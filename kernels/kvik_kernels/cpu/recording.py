"""Calls of kernels that are made once, recorded, and made again in one call, without Python between them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from kvik_kernels.cpu.library import InstructionSet, Kernel, Library
from kvik_kernels.cpu.structs import Call


class Calls:
    """Some calls in their order. What their arguments point to must be where it was."""

    def __init__(self, library: Library, calls: list[Call], kept: list[ctypes.Structure]) -> None:
        self._run_all = library.functions.kvik_run_all
        self._calls = (Call * len(calls))(*calls)
        self._kept = kept

    def __len__(self) -> int:
        return len(self._calls)

    def __call__(self) -> None:
        """Make them again."""
        self._run_all(self._calls, len(self._calls))


class Recording:
    """Notes the calls that are made while it listens. Arguments are copied, but those that all layers of a step share:
    they stay what they are, and their owner may change them from step to step."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._calls: list[Call] = []
        self._kept: list[ctypes.Structure] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        """One recording at a time listens."""
        assert self._library.recorder is None
        self._library.recorder = self
        try:
            yield
        finally:
            self._library.recorder = None

    def note(
        self,
        kernel: Kernel,
        instruction_set: InstructionSet,
        arguments: ctypes.Structure,
        step: ctypes.Structure | None,
    ) -> None:
        """See library.Recorder."""
        copy = type(arguments).from_buffer_copy(arguments)
        self._kept.append(copy)
        if step is not None:
            self._kept.append(step)
        shared = None if step is None else ctypes.addressof(step)
        self._calls.append(Call(kernel, instruction_set, shared, ctypes.addressof(copy)))

    def take(self) -> Calls:
        """Those that were noted since the last time."""
        calls = Calls(self._library, self._calls, self._kept)
        self._calls, self._kept = [], []
        return calls


class ReadAnew:
    """What the calls of all layers share, and recorded ones read anew in each step."""

    _all: ctypes.Structure
    _kind: tuple[object, ...]
    """Shapes and caches, which are the same in all steps of a recording."""
    _now: ReadAnew | None = None

    def become(self, other: Self) -> None:
        """Stand for `other` from now on, in calls that name this one. ValueError where other shapes or caches are
        meant."""
        if self._kind != other._kind:
            raise ValueError("other: is of other shapes or caches")
        ctypes.memmove(ctypes.byref(self._all), ctypes.byref(other._all), ctypes.sizeof(self._all))
        self._now = other  # what is pointed to is its
