"""Whether somebody looks inside: then modules compute, and nothing compiled goes past them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks


def is_looked_at(parts: Iterable[nn.Module]) -> bool:
    """Whether a hook sits on one of these, or one has been given another forward."""
    if _global_forward_hooks or _global_forward_pre_hooks:
        return True
    return any(
        part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part) for part in parts
    )
