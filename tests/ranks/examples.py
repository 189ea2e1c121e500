"""Run on every rank by test_distributed_examples.py: the examples' losses are those of one CPU process without wrappers."""

import argparse
import os
import sys
import warnings
from pathlib import Path

import ddp_digits
import fsdp_gpt
import gpt
import ranks
import torch
import train_digits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

from torchtpu_dist.testing import record_checks

RANK, SIZE = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
STEPS, HALF = 6, 3


def close(actual, expected):
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=0, atol=1e-4)


def gpt_settings(tensor=1, device="tpu"):
    sizes = f"--dim 16 --depth 1 --heads 4 --context 16 --batch 8 --lr 0.01 --tensor-parallel {tensor}"
    return fsdp_gpt.arguments([*sizes.split(), "--device", device])


def plain_gpt(args):
    """The losses without any wrapper, on the CPU."""
    torch.manual_seed(args.seed)
    model = gpt.GPT(args.dim, args.depth, args.heads, args.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    text, found = gpt.corpus(), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = gpt.loss_of(model, *gpt.batch(text, step, args.seed, args.batch, args.context))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    assert found[-1] < found[0]
    return found


def curve(run, steps):
    return [loss.item() for loss in fsdp_gpt.train(run, steps)]


def continues(args, folder):
    """Half of the steps, a checkpoint, and the other half in a new run from it."""
    expected = plain_gpt(args)
    first = fsdp_gpt.build(args, RANK, SIZE)
    close(fsdp_gpt.fit(first, HALF, HALF, folder, True), expected[:HALF])
    second = fsdp_gpt.build(args, RANK, SIZE)
    fsdp_gpt.resume(second, folder)
    assert second.step == HALF
    close(curve(second, STEPS), expected[HALF:])


def check_fsdp():
    continues(gpt_settings(), FOLDER / "fsdp")


def check_tensor_parallel():
    run = fsdp_gpt.build(gpt_settings(SIZE), RANK, SIZE)
    assert run.model.blocks[0].up.weight.to_local().shape == (4 * 16 // SIZE, 16)
    close(curve(run, STEPS), plain_gpt(gpt_settings()))


def check_sharded_on_two_dimensions():
    if SIZE == 4:
        continues(gpt_settings(2), FOLDER / "both")


def check_sharded_and_replicated():
    if SIZE != 4:
        return
    args = gpt_settings()
    torch.manual_seed(args.seed)
    model = gpt.GPT(args.dim, args.depth, args.heads, args.context).to("tpu")
    mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh)
    assert model.blocks[0].up.weight.placements == (Replicate(), Shard(0))
    run = fsdp_gpt.build(args, RANK, SIZE)
    run.model, run.optimizer = model, torch.optim.AdamW(model.parameters(), lr=args.lr)
    close(curve(run, STEPS), plain_gpt(args))


def check_ddp():
    args = argparse.Namespace(model="vit", device="tpu", seed=3, epochs=1, batch=512)
    run = ddp_digits.build(args, RANK, SIZE)
    actual = ddp_digits.train_epoch(run, 0)
    single = train_digits.build("vit", "cpu", 3, steps=len(actual))
    sampler = DistributedSampler(single.train.dataset, 1, 0, seed=3)
    expected = []
    for images, labels in DataLoader(single.train.dataset, 512, sampler=sampler, drop_last=True):
        single.optimizer.zero_grad()
        loss = F.cross_entropy(single.model(images), labels)
        loss.backward()
        single.optimizer.step()
        single.scheduler.step()
        expected.append(loss.item())
    close(actual, expected)


def main():
    global FOLDER
    warnings.simplefilter("ignore")
    FOLDER = Path(sys.argv[1]).parent
    wanted = sys.argv[2:]
    chosen = {k: v for k, v in globals().items() if k.startswith("check_") and (not wanted or k in wanted)}
    with ranks.joined("tpu", 120):
        record_checks(chosen, sys.argv[1], RANK)


if __name__ == "__main__":
    main()
