"""The finished pack: importing this module registers every family of lowerings."""

from torchtpu_ops import (
    activation,
    attention,
    conv,
    factory,
    fft,
    foreach,
    indexing,
    linalg,
    loss,
    matmul,
    norm,
    optim,
    pad,
    pointwise,
    pool,
    random,
    reduce,
    resample,
    rnn,
    scatter,
    shape,
    sort,
)
from torchtpu_ops._pack import pack

FAMILIES = (
    activation,
    attention,
    conv,
    factory,
    fft,
    foreach,
    indexing,
    linalg,
    loss,
    matmul,
    norm,
    optim,
    pad,
    pointwise,
    pool,
    random,
    reduce,
    resample,
    rnn,
    scatter,
    shape,
    sort,
)

__all__ = ["FAMILIES", "pack"]
