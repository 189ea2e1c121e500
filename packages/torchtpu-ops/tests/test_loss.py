"""Losses and their gradients agree with the CPU for every reduction."""

import pytest
import torch
import torch.nn.functional as F

aten = torch.ops.aten
REDUCTIONS = ["none", "mean", "sum"]


def r(*shape):
    return torch.randn(shape, dtype=torch.float64)


def compare(fn, *tensors):
    """The value of ``fn`` and its gradients for the floating tensors."""
    results = []
    for device in ("cpu", "tpu"):
        args = [t.detach().clone().to(device).requires_grad_(t.is_floating_point()) for t in tensors]
        loss = fn(*args)
        loss.square().sum().backward()
        results.append([loss, *(a.grad for a in args if a.grad is not None)])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got.detach().cpu(), want.detach(), equal_nan=True)


PAIRS = [
    (F.mse_loss, {}), (F.l1_loss, {}), (F.smooth_l1_loss, {}), (F.smooth_l1_loss, {"beta": 0.3}), (F.huber_loss, {}),
    (F.smooth_l1_loss, {"beta": 0.0}), (F.huber_loss, {"delta": 0.4}), (F.kl_div, {}), (F.kl_div, {"log_target": True}),
    (F.poisson_nll_loss, {}),
]  # fmt: skip


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("fn", "options"), PAIRS)
def test_pairs(fn, options, reduction):
    target = r(4, 5).softmax(1) if fn is F.kl_div and not options else r(4, 5)
    compare(lambda x, y: fn(x, y, reduction=reduction, **options), r(4, 5), target)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses_of_fixed_targets(reduction):
    sign = torch.tensor([1.0, -1, 1, -1], dtype=torch.float64)
    target, weight, classes = torch.rand(4, 5).double(), torch.rand(4, 5).double(), torch.rand(5).double()

    def on(fn, *fixed, **options):
        def call(x):
            options_there = {k: v.to(x.device) for k, v in options.items()}
            return fn(x, *(f.to(x.device) for f in fixed), reduction=reduction, **options_there)

        return call

    compare(on(F.soft_margin_loss, sign), r(4))
    compare(on(F.hinge_embedding_loss, sign), r(4))
    compare(on(F.binary_cross_entropy, target), torch.rand(4, 5).double())
    compare(on(F.binary_cross_entropy, target, weight=weight), torch.rand(4, 5).double())
    compare(on(F.binary_cross_entropy_with_logits, target), r(4, 5) * 30)
    compare(on(F.binary_cross_entropy_with_logits, target, weight=weight, pos_weight=classes), r(4, 5))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(6, 5), (5,), (2, 5, 3), (2, 5, 3, 4)], ids=str)
def test_negative_log_likelihood(reduction, weighted, shape):
    target = torch.randint(0, 5, shape[:1] + shape[2:] if len(shape) > 1 else ())
    weight = torch.rand(5).double() if weighted else None

    def loss(x, t, ignore=-100):
        there = weight.to(x.device) if weighted else None
        return F.nll_loss(x, t, there, ignore_index=ignore, reduction=reduction)

    compare(loss, r(*shape).log_softmax(0), target)
    compare(lambda x, t: loss(x, t, 2), r(*shape), target)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(reduction, smoothing):
    options = {"reduction": reduction, "label_smoothing": smoothing}
    compare(lambda x, t: F.cross_entropy(x, t, **options), r(6, 5), torch.tensor([0, 4, -100, 2, 2, 1]))
    compare(lambda x, t: F.cross_entropy(x, t, **options), r(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4)))
    compare(lambda x: F.cross_entropy(x, x.detach().softmax(1), **options), r(6, 5))


def test_all_targets_ignored():
    compare(lambda x, t: F.nll_loss(x, t), r(3, 4), torch.full((3,), -100))
    compare(lambda x, t: F.nll_loss(x, t, reduction="sum"), r(3, 4), torch.full((3,), -100))
    compare(lambda x, t: F.nll_loss(x, t, ignore_index=2), r(3, 4), torch.full((3,), 2))
    compare(lambda x, t: F.nll_loss(x, t, ignore_index=2), r(4), torch.tensor(2))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margins_of_several_classes(reduction):
    weight = torch.rand(5).double()
    target = torch.tensor([0, 4, 1, 1])

    def margin(x, t, **options):
        return F.multi_margin_loss(x, t, reduction=reduction, **options)

    compare(margin, r(4, 5), target)
    compare(lambda x, t: margin(x, t, p=2), r(4, 5), target)
    compare(lambda x, t: margin(x, t, margin=0.3, weight=weight.to(x.device)), r(4, 5), target)
    labels = torch.tensor([[3, 0, -1, 1, -1], [-1, 0, 1, 2, 3], [0, 1, 2, 3, 4]])
    compare(lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), r(3, 5), labels)
    if reduction != "none":  # of one sample, CPU's shape is not that of torch's meta kernel
        compare(margin, r(5), torch.tensor(2))
        compare(lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), r(5), labels[0])


def test_short_floats(check):
    x, y = torch.randn(4, 5).bfloat16(), torch.randn(4, 5).bfloat16()
    for fn in (F.mse_loss, F.smooth_l1_loss, F.huber_loss):
        check(fn, x, y, reduction="none")
    check(F.nll_loss, x.log_softmax(1), torch.tensor([0, 3, 1, 4]))


@pytest.mark.parametrize("bad", [5, -1])
def test_debug_mode_names_a_target_that_does_not_exist(bad):
    import torchtpu

    x, target = torch.randn(3, 5), torch.tensor([0, bad, 1])
    with pytest.raises(IndexError) as cpu:
        F.nll_loss(x, target)
    with torchtpu.mode("debug"), pytest.raises(IndexError) as device:
        F.nll_loss(x.to("tpu"), target.to("tpu"))
    assert str(device.value).startswith(str(cpu.value))
