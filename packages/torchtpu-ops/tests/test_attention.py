"""Attention and embeddings agree with the CPU."""

import copy

import pytest
import torch

F = torch.nn.functional
F64 = torch.float64


def both(op, *tensors, **tolerance):
    """Values and gradients on the CPU and on the device."""
    results = []
    for device in ("cpu", "tpu"):
        leaves = [t.detach().to(device).requires_grad_() for t in tensors]
        out = op(*leaves)
        (out * torch.arange(1.0, out.numel() + 1, device=device).reshape(out.shape)).sum().backward()
        results.append([out.detach().cpu(), *(t.grad.cpu() for t in leaves)])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, **tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_scaled_dot_product(masked, causal):
    if masked and causal:
        pytest.skip("torch takes one of them")
    q, k, v = (torch.randn(2, 3, n, 4, dtype=F64) for n in (5, 6, 6))
    mask = torch.rand(5, 6) > 0.3 if masked else None
    if masked:
        mask[:, 0] = True

    def op(*t):
        return F.scaled_dot_product_attention(*t, None if mask is None else mask.to(t[0].device), 0.0, causal)

    both(op, q, k, v)


@pytest.mark.parametrize("need", [False, True])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("mask", [None, "padding", "source"])
@pytest.mark.parametrize("training", [False, True])
def test_multi_head(training, mask, average, need):
    cpu = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=F64).train(training)
    tpu, x = copy.deepcopy(cpu).to("tpu"), torch.randn(3, 5, 8, dtype=F64)
    padding = torch.arange(5) >= torch.tensor([[3], [5], [4]])
    results = []
    with torch.set_grad_enabled(training):
        for layer in (cpu, tpu):
            device = layer.out_proj.weight.device
            masks = {"key_padding_mask": padding.to(device)} if mask == "padding" else {}
            if mask == "source":
                masks = {"attn_mask": torch.ones(5, 5, dtype=torch.bool, device=device).triu(1)}
            y = x.to(device)
            out, weights = layer(y, y, y, need_weights=need, average_attn_weights=average, **masks)
            results.append([t.detach().cpu() for t in (out, weights) if t is not None])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_embedding(padding, by_frequency):
    indices = torch.randint(0, 5, (3, 4))

    def op(w):
        return F.embedding(indices.to(w.device), w, padding, scale_grad_by_freq=by_frequency)

    both(op, torch.randn(5, 3, dtype=F64))
    both(op, torch.randn(5, 3).bfloat16(), rtol=2e-2, atol=1e-1)


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_embedding_with_bounded_norm(norm):
    table, indices = torch.randn(6, 3, dtype=F64) * 3, torch.tensor([[0, 2], [2, 5]])
    tables = table.clone(), table.to("tpu")
    outs = [F.embedding(indices.to(t.device), t, max_norm=1.0, norm_type=norm).cpu() for t in tables]
    torch.testing.assert_close(outs[1], outs[0])
    torch.testing.assert_close(tables[1].cpu(), tables[0])


OFFSETS = [[0, 3, 3, 5], [0, 2, 8]]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
def test_bags(offsets, last, padding, mode):
    indices = torch.tensor([0, 1, 1, 4, 3, 2, 2, 1])
    offsets = torch.tensor([*offsets, 8] if last else offsets)

    def op(w, *weights):
        at = [t.to(w.device) for t in (indices, offsets)]
        options = {"mode": mode, "padding_idx": padding, "include_last_offset": last}
        return F.embedding_bag(at[0], w, at[1], per_sample_weights=weights[0] if weights else None, **options)

    both(op, torch.randn(5, 3, dtype=F64))
    if mode == "sum":
        both(op, torch.randn(5, 3, dtype=F64), torch.rand(8, dtype=F64))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_by_frequency(mode):
    indices, grads = torch.tensor([[3, 3, 1], [0, 3, 1]]), []

    def bags(w):
        return F.embedding_bag(indices.to(w.device), w, mode=mode, scale_grad_by_freq=True)

    def rows(w):  # the CPU's own bags divide by the frequency of another row, so they are no measure
        return getattr(F.embedding(indices, w, scale_grad_by_freq=True), mode)(1)

    table = torch.randn(5, 3, dtype=F64)
    for device, op in (("cpu", rows), ("tpu", bags)):
        leaf = table.to(device, copy=True).requires_grad_()
        out = op(leaf)
        (out * torch.arange(1.0, 7, device=device).reshape(2, 3)).sum().backward()
        grads.append(leaf.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])
