"""The fused optimizers and the gradient scaler's operators agree with the CPU."""

import pytest
import torch

aten = torch.ops.aten
CASES = [
    (torch.optim.Adam, {}), (torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
    (torch.optim.Adam, {"maximize": True}), (torch.optim.AdamW, {"weight_decay": 0.1}),
    (torch.optim.AdamW, {"amsgrad": True, "maximize": True}), (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    (torch.optim.Adagrad, {}), (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1, "maximize": True}),
]  # fmt: skip


def train(kind, options, start, grads, device):
    params = [torch.nn.Parameter(t.to(device, copy=True)) for t in start]
    optimizer = kind(params, lr=0.03, fused=True, **options)
    for step in grads:
        for p, g in zip(params, step, strict=True):
            p.grad = g.to(device)
        optimizer.step()
    state = [t for p in params for t in optimizer.state[p].values() if isinstance(t, torch.Tensor)]
    return [t.detach().cpu() for t in [*params, *state]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind,options", CASES, ids=str)
def test_steps(kind, options, dtype):
    start = [torch.randn(s).to(dtype) for s in ((3, 4), (5,))]
    grads = [[torch.randn(t.shape).to(dtype) for t in start] for _ in range(3)]
    want, got = (train(kind, options, start, grads, d) for d in ("cpu", "tpu"))
    # the CPU takes powers of beta in float64, the device in the parameters' precision
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {}
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g, w, **close)


def call(name, device, lr, scale, found):
    f = {"dtype": torch.float64, "device": device}
    p, g, m, v = ([torch.arange(1.0, 4, **f) * k] for k in (1, 2, 3, 4))
    step = [torch.tensor(2.0, device=device)]
    named = {"maximize": False, "weight_decay": 0.1, "lr": lr}
    named |= {k: x if x is None else x.to(device) for k, x in (("grad_scale", scale), ("found_inf", found))}
    if "adam" in name:
        lists = [p, g, m, v, [], step]
        named |= {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": False}
    elif "sgd" in name:
        lists = [p, g, m]
        named |= {"momentum": 0.9, "dampening": 0.0, "nesterov": False, "is_first_step": False}
    else:
        lists = [p, g, v, step]
        named |= {"lr_decay": 0.1, "eps": 1e-8}
    getattr(aten, name)(*lists, **named)
    return [t.cpu() for part in lists for t in part]


@pytest.mark.parametrize("found", [None, 0.0, 1.0])
@pytest.mark.parametrize("scale", [None, 8.0])
@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"])
def test_scaled_gradients(name, tensor, scale, found):
    scale, found = (None if x is None else torch.tensor(x) for x in (scale, found))
    lr = torch.tensor(0.03) if tensor else 0.03
    for got, want in zip(
        call(name, "tpu", lr, scale, found), call(name, "cpu", lr, scale, found), strict=True
    ):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("bad", [None, float("inf"), float("nan")])
@pytest.mark.parametrize("before", [0.0, 1.0])
def test_unscale(bad, before):
    grads = [torch.randn(3, 4), torch.randn(5)]
    if bad is not None:
        grads[1][2] = bad
    got = [t.to("tpu") for t in grads]
    flags = torch.tensor(before), torch.tensor(before, device="tpu")
    aten._amp_foreach_non_finite_check_and_unscale_(grads, flags[0], torch.tensor(0.25))
    aten._amp_foreach_non_finite_check_and_unscale_(got, flags[1], torch.tensor(0.25, device="tpu"))
    assert flags[1].item() == flags[0].item()
    for a, b in zip(got, grads, strict=True):
        torch.testing.assert_close(a.cpu(), b, equal_nan=True)


@pytest.mark.parametrize("scale", [8.0, 3e38])
@pytest.mark.parametrize("tracker", [0, 4])
@pytest.mark.parametrize("found", [0.0, 1.0])
def test_update_scale(scale, tracker, found):
    results = []
    for device in ("cpu", "tpu"):
        tensors = torch.tensor(scale), torch.tensor(tracker, dtype=torch.int32), torch.tensor(found)
        moved = [t.to(device) for t in tensors]
        aten._amp_update_scale_(*moved, 2.0, 0.5, 5)
        results.append([t.cpu() for t in moved])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
