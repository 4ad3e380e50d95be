"""One forward pass as it was made: its calls of kernels and of torch in their order, and the memory between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kvik_engine.attention.backend import StepAttention
from kvik_engine.attention.cpu_backend import Replayed
from kvik_engine.attention.kv_cache import KVCache
from kvik_engine.models.registry import Model
from kvik_kernels.cpu.library import Library
from kvik_kernels.cpu.recording import Recording

_BY_NUMBERS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class Unrecordable(Exception):
    """The pass made an operation whose result depends on more than shapes; the message names it."""


class Buffers:
    """Memory of what forward passes allocate: the n-th tensor of each pass lies in the n-th buffer, of whatever number
    of tokens it is, for one pass at a time is made."""

    def __init__(self, most_tokens: int) -> None:
        self._most_tokens = most_tokens
        self._buffers: list[Tensor] = []

    def take(self, index: int, size: Sequence[int], dtype: torch.dtype, tokens: int) -> Tensor:
        """An uninitialised tensor of a pass of `tokens`; buffers have room for those of the most."""
        count = torch.Size(size).numel() * dtype.itemsize
        if index == len(self._buffers):
            self._buffers.append(torch.empty(0, dtype=torch.uint8))
        if self._buffers[index].numel() < count:
            self._buffers[index] = torch.empty(-(-count * self._most_tokens // tokens), dtype=torch.uint8)
        return self._buffers[index][:count].view(dtype).view(*size)


class RecordedStep:
    """A forward pass of so many tokens over one cache."""

    def __init__(
        self,
        library: Library,
        buffers: Buffers,
        cache: KVCache,
        token_ids: Tensor,
        positions: Tensor,
        replayed: Sequence[Replayed],
    ) -> None:
        """`replayed`: by KV group, of the step that will be recorded."""
        self.cache = cache
        self._recording = Recording(library)
        self._listener = _Listener(buffers, self._recording, len(token_ids))
        self._token_ids = token_ids.clone()
        self._positions = positions.clone()
        self._replayed = replayed
        self._hidden: Tensor | None = None

    def record(self, model: Model, attention: StepAttention) -> Tensor:
        """Make the pass. Gives its hidden states, whose memory the next pass takes. Raises Unrecordable."""
        with self._recording.listening(), self._listener:
            self._hidden = model.forward(self._token_ids, self._positions, attention)
        self._listener.end()
        return self._hidden

    def replay(self, token_ids: Tensor, positions: Tensor, replayed: Sequence[Replayed]) -> Tensor:
        """The same pass for other tokens, in rows that `replayed` describes: as `record`."""
        assert self._hidden is not None, "record comes first"
        self._token_ids.copy_(token_ids)
        self._positions.copy_(positions)
        for recorded, now in zip(self._replayed, replayed, strict=True):
            recorded.become(now)
        for part in self._listener.parts:
            part()
        return self._hidden


class _Listener(TorchDispatchMode):
    """Notes torch's operations, between the kernels' calls, and hands out buffers."""

    def __init__(self, buffers: Buffers, recording: Recording, tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parts: list[Callable[[], None]] = []
        self._buffers = buffers
        self._recording = recording
        self._tokens = tokens
        self._taken: list[Tensor] = []
        """Kept: calls of kernels know their addresses only."""

    def end(self) -> None:
        """The kernels' calls that were made since torch's last operation are a part, too."""
        calls = self._recording.take()
        if len(calls):
            self.parts.append(calls)

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.empty.memory_format:
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            self._taken.append(self._buffers.take(len(self._taken), args[0], dtype, self._tokens))
            return self._taken[-1]
        if any(tag in func.tags for tag in _BY_NUMBERS):
            raise Unrecordable(f"{func} depends on numbers")
        operation = _Operation(func, args, kwargs)
        result = operation.first()
        if operation.computes:
            self.end()
            self.parts.append(operation)
        return result


class _Operation:
    """One of torch's, on the tensors that it first had."""

    def __init__(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._func, self._args, self._kwargs = func, args, kwargs
        self._results: list[Tensor] = []

    @property
    def computes(self) -> bool:
        """Whether it did more than look at its arguments in another shape."""
        return self._func._schema.is_mutable or bool(self._results)

    def first(self) -> Any:
        """Its result."""
        result = self._func(*self._args, **self._kwargs)
        given = {each.untyped_storage().data_ptr() for each in _tensors((self._args, self._kwargs))}
        self._results = [each for each in _tensors(result) if each.untyped_storage().data_ptr() not in given]
        return result

    def __call__(self) -> None:
        """Again, into the memory of the first result."""
        again = _tensors(self._func(*self._args, **self._kwargs))
        if self._results:
            for first, now in zip(self._results, again, strict=True):
                first.copy_(now)


def _tensors(values: object) -> list[Tensor]:
    """Those with strides; oneDNN's have none, and are weights."""
    return [each for each in tree_leaves(values) if isinstance(each, Tensor) and each.layout is torch.strided]
