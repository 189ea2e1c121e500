"""For a TPU that is not here, long attention is the flash kernel's: no scores of all queries and keys in memory."""

import importlib.util
import re

import pytest
import torch

import torchtpu
from torchtpu.plugins import selection
from torchtpu.runtime import dry, topology

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
WHERE = "v5e:2x2"


def compiled(length, dtype=torch.bfloat16, width=128, heads=(1, 1), **options):
    """The forward and backward programs of attention for the TPU; nothing runs here."""
    found = {}

    def register(name, closed, avals, donate):
        found[name] = topology.Collected(name, closed, avals, tuple(donate))
        return lambda: None

    with torchtpu.mode("strict"), topology.targeting(WHERE), dry.watching(register, run=False):
        shapes = [(1, h, length, width) for h in (heads[0], heads[1], heads[1])]
        leaves = [torch.empty(s, dtype=dtype, device="tpu", requires_grad=True) for s in shapes]
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, **options)
        torch.autograd.grad(out, leaves, torch.empty_like(out))
    both = [found["torchtpu_sdpa"], found["torchtpu_sdpa_backward"]]
    return [program.compile_for(WHERE) for program in both]


def square(program, length):
    """The shapes in a program that hold a number for each pair of a query and a key."""
    return re.findall(rf"\w+\[(?:\d+,)*{length},{length}(?:,\d+)*\]", program.hlo)


def test_long_causal_attention_is_a_kernel():
    selection.forget()
    for program in compiled(8192, is_causal=True):
        assert "tpu_custom_call" in program.hlo
        assert not square(program, 8192)
        assert program.temporaries < 8192 * 8192
    chosen = [d.chosen for d in selection.decisions() if d.call.target == "tpu"]
    assert chosen == ["kernels.flash", "kernels.flash_backward"]


def test_memory_does_not_grow_with_the_square():
    sizes = [[p.temporaries for p in compiled(n, is_causal=True)] for n in (1024, 4096, 16384)]
    for small, middle, large in zip(*sizes, strict=True):
        assert middle <= 4 * small + 2**20
        assert large <= 16 * small + 2**22


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": torch.float32, "width": 64},
        {"width": 64, "heads": (4, 2), "enable_gqa": True},
        {"width": 256, "is_causal": True},
    ],
    ids=["float32", "grouped", "wide"],
)
def test_other_calls_that_the_kernel_takes(options):
    for program in compiled(640, **options):
        assert "tpu_custom_call" in program.hlo and not square(program, 640)


def test_what_the_kernel_does_not_take_is_the_lowering():
    for program in compiled(1024, dtype=torch.float16, is_causal=True):
        assert "tpu_custom_call" not in program.hlo
        assert square(program, 1024)
