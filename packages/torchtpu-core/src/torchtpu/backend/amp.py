"""Autocast: which operators run in the lower precision, which in float32; the lists that cuda has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

LOWER = (
    "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv",
    "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention",
)  # fmt: skip
FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "group_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss",
    "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp", "softmax.int",
    "log_softmax.int", "cumprod", "cumsum", "prod", "prod.dim_int", "sum", "sum.dim_IntList", "norm.Scalar",
    "linalg_vector_norm", "linalg_matrix_norm", "rms_norm",
)  # fmt: skip
WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put", "tensordot", "scatter_add",
    "vdot", "cat", "stack",
)  # fmt: skip

_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _eligible(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not torch.float64


def _cast(dtype: torch.dtype, tree: Any) -> Any:
    return tree_map(lambda v: v.to(dtype) if _eligible(v) and v.device.type == "tpu" else v, tree)


def _widest(args: Any) -> torch.dtype:
    found: list[torch.dtype] = []
    tree_map(lambda v: found.append(v.dtype) if _eligible(v) else None, args)
    return torch.float32 if torch.float32 in found else torch.get_autocast_dtype("tpu")


def _kernel(op: Any, choose: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            dtype = choose(args)
            return op(*_cast(dtype, args), **_cast(dtype, kwargs))

    return run


def _refused(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Use binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss instead."
    )


def register() -> list[torch.library.Library]:
    """Register the autocast rules; returns the libraries to keep alive."""
    from torchtpu.dispatch.schema import overload

    through = torch.library.Library("_", "IMPL")
    through.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    rules: tuple[tuple[tuple[str, ...], Callable[[Any], torch.dtype]], ...] = (
        (LOWER, lambda args: torch.get_autocast_dtype("tpu")),
        (FLOAT32, lambda args: torch.float32),
        (WIDEST, _widest),
    )
    for names, choose in rules:
        for name in names:
            op = overload(f"aten::{name}")
            if op is not None:
                library.impl(name, _kernel(op, choose))
    library.impl("binary_cross_entropy", _refused)
    return [through, library]
