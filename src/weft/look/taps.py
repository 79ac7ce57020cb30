"""Hooks on named submodules during one call: inputs and outputs of modules, by name.

    with tapped(outputs={"norm": path.norm}, inputs={"heads": attention.out}) as values:
        path(x, attention)
    values["norm"], values["heads"]

Only calls by the thread that registered the hooks are recorded, because another thread may use the
model at the same time. The hooks are removed after the block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

Values = dict[str, Tensor]
Edit = Callable[[Tensor], Tensor]


@contextmanager
def tapped(
    outputs: Mapping[str, nn.Module],
    inputs: Mapping[str, nn.Module],
    edits: Mapping[nn.Module, Edit] | None = None,
) -> Iterator[Values]:
    """The outputs and the first inputs of modules inside the block. `edits` change the input of a
    module before it is recorded and used."""
    values: Values = {}
    thread = threading.get_ident()

    def edit_input(edit: Edit) -> Callable[..., tuple[Tensor, ...] | None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            if threading.get_ident() != thread:
                return None
            return (edit(args[0]), *args[1:])

        return hook

    def record_input(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            if threading.get_ident() == thread:
                values[name] = args[0]

        return hook

    def record_output(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if threading.get_ident() == thread:
                values[name] = output

        return hook

    handles = [
        module.register_forward_pre_hook(edit_input(edit)) for module, edit in (edits or {}).items()
    ]
    handles += [
        module.register_forward_pre_hook(record_input(name)) for name, module in inputs.items()
    ]
    handles += [
        module.register_forward_hook(record_output(name)) for name, module in outputs.items()
    ]
    try:
        yield values
    finally:
        for handle in handles:
            handle.remove()
