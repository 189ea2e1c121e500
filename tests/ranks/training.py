"""Run on every rank by test_distributed.py: training with torch's own parallel wrappers, compared with one CPU process."""

import copy
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from torchtpu_dist.testing import record_checks

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = Path(sys.argv[1]).parent
STEPS = 12
torch.manual_seed(0)
X, Y = torch.randn(32, 16), torch.randint(0, 4, (32,))
MESH = []


def make():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16), nn.LayerNorm(16), nn.Linear(16, 4))


def losses(model, x, y, average, steps=STEPS, clip=None, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=average or None)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        loss = loss.detach()
        if average:
            dist.all_reduce(loss, dist.ReduceOp.AVG)
        found.append(loss.item())
    return torch.tensor(found)


def mine():
    return X[RANK::SIZE].to("tpu"), Y[RANK::SIZE].to("tpu")


def same_curve(actual, **settings):
    expected = losses(make(), X, Y, False, **settings)
    assert expected[-1] < 0.8 * expected[0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


def sharded():
    model = make().to("tpu")
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=MESH[0])
    return fully_shard(model, mesh=MESH[0])


def check_ddp():
    same_curve(losses(DistributedDataParallel(make().to("tpu")), *mine(), True))


def check_ddp_with_views_and_small_buckets():
    model = DistributedDataParallel(make().to("tpu"), gradient_as_bucket_view=True, bucket_cap_mb=0.001)
    same_curve(losses(model, *mine(), True, clip=0.1), clip=0.1)


def check_ddp_with_statistics_of_all_ranks():
    """SyncBatchNorm on parts of a batch trains as BatchNorm does on the whole.

    A bias before it would have no gradient but rounding, which AdamW makes a step of.
    """
    model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.BatchNorm1d(32), nn.Linear(32, 4))
    single = copy.deepcopy(model)
    for p, q in zip(model.parameters(), single.parameters(), strict=True):
        dist.broadcast(p.data, 0)
        q.data.copy_(p.data)
    synced = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model).to("tpu"))
    actual, expected = losses(synced, *mine(), True), losses(single, X, Y, False)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(
            getattr(model[1], name).cpu(), getattr(single[1], name), rtol=1e-4, atol=1e-5
        )


def check_ddp_no_sync_accumulates():
    model, single = DistributedDataParallel(make().to("tpu")), make()
    x, y = mine()
    with model.no_sync():
        F.cross_entropy(model(x[:8]), y[:8]).backward()
    F.cross_entropy(model(x[8:]), y[8:]).backward()
    for r in range(SIZE):
        for part in (slice(0, 8), slice(8, None)):
            (F.cross_entropy(single(X[r::SIZE][part]), Y[r::SIZE][part]) / SIZE).backward()
    for a, b in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)


def check_ranks_that_do_more_than_others():
    model = DistributedDataParallel(make().to("tpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = mine()
    for step in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if RANK == 0:
            torch.linalg.norm(torch.cat([p.flatten() for p in model.parameters()])).item()
        loss.backward()
        optimizer.step()
        if step % SIZE == RANK:
            with torch.no_grad():
                model.module(X.to("tpu")).argmax(1).cpu()
    found = [None] * SIZE
    dist.all_gather_object(found, [p.cpu() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(found[0], found[-1], strict=True))


def check_fsdp():
    model = sharded()
    assert all(isinstance(p, DTensor) for p in model.parameters())
    same_curve(losses(model, *mine(), True))


def check_fsdp_clips_the_same_norm():
    same_curve(losses(sharded(), *mine(), True, clip=0.1), clip=0.1)


def check_fsdp_in_bfloat16():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = fully_shard(make().to("tpu"), mesh=MESH[0], mp_policy=policy)
    actual = losses(model, *mine(), True)
    torch.testing.assert_close(actual, losses(make(), X, Y, False), rtol=0.1, atol=0.1)


def check_tensor_parallel():
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(make().to("tpu"), MESH[0], plan)
    assert model[0].weight.to_local().shape == (32 // SIZE, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    same_curve(losses(model, X.to("tpu"), Y.to("tpu"), False, optimizer=optimizer))


def check_distributed_tensors():
    mesh, full = MESH[0], torch.arange(24.0).reshape(6, 4)
    rows = distribute_tensor(full.to("tpu"), mesh, [Shard(0)])
    torch.testing.assert_close(rows.to_local().cpu(), full.chunk(SIZE)[RANK])
    columns = rows.redistribute(mesh, [Shard(1)])
    torch.testing.assert_close(columns.to_local().cpu(), full.chunk(SIZE, 1)[RANK])
    torch.testing.assert_close(columns.full_tensor().cpu(), full)
    product = rows @ distribute_tensor(full.t().contiguous().to("tpu"), mesh, [Replicate()])
    torch.testing.assert_close(product.full_tensor().cpu(), full @ full.t())
    partial = DTensor.from_local(full.to("tpu"), mesh, [Partial()])
    torch.testing.assert_close(partial.full_tensor().cpu(), SIZE * full)
    uneven = distribute_tensor(torch.arange(5.0).to("tpu"), mesh, [Shard(0)])
    torch.testing.assert_close((uneven * 2).full_tensor().cpu(), torch.arange(5.0) * 2)


def check_functional_collectives():
    group, x = dist.group.WORLD, torch.arange(4.0) + RANK
    every = [torch.arange(4.0) + r for r in range(SIZE)]
    device = x.to("tpu")
    pairs = [
        (functional.all_reduce(device, "sum", group), sum(every)),
        (functional.all_gather_single(device, 0, group), torch.cat(every)),
        (functional.reduce_scatter_single(device, "sum", 0, group), sum(every).chunk(SIZE)[RANK]),
        (
            functional.all_to_all_single(device, None, None, group),
            torch.cat([t.chunk(SIZE)[RANK] for t in every]),
        ),
        (functional.broadcast(device, 0, group), every[0]),
    ]
    for actual, expected in pairs:
        torch.testing.assert_close((actual + 0).cpu(), expected)


def piped(schedule, chunks=4):
    """Each step's loss, on the last rank, of the model cut between its layers 1 and 2."""
    model = make()
    cut = model[:2] if RANK == 0 else model[2:]
    stage = PipelineStage(cut.to("tpu"), RANK, SIZE, torch.device("tpu"))
    runs = schedule(stage, chunks, loss_fn=F.cross_entropy)
    optimizer = torch.optim.AdamW(stage.submod.parameters(), lr=1e-2)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        parts = []
        if RANK == 0:
            runs.step(X.to("tpu"))
        else:
            runs.step(target=Y.to("tpu"), losses=parts)
            found.append(torch.stack(parts).mean().item())
        optimizer.step()
    return torch.tensor(found)


def check_pipelines():
    for schedule in (ScheduleGPipe, Schedule1F1B):
        found = piped(schedule)
        if RANK == SIZE - 1:
            same_curve(found)


def check_checkpoint():
    model = sharded()
    losses(model, *mine(), True, steps=2)
    path = FOLDER / "checkpoint"
    dcp.save({"model": model.state_dict()}, checkpoint_id=path)
    fresh = sharded()
    state = {"model": fresh.state_dict()}
    dcp.load(state, checkpoint_id=path)
    fresh.load_state_dict(state["model"])
    whole = {"model": make().to("tpu").state_dict()}
    dcp.load(whole, checkpoint_id=path)
    for name, value in model.state_dict().items():
        full = value.full_tensor().cpu()
        torch.testing.assert_close(fresh.state_dict()[name].full_tensor().cpu(), full)
        torch.testing.assert_close(whole["model"][name].cpu(), full)


def check_asynchronous_checkpoint():
    model, path = sharded(), FOLDER / "asynchronous"
    expected = {name: value.full_tensor().cpu() for name, value in model.state_dict().items()}
    writing = dcp.async_save({"model": model.state_dict()}, checkpoint_id=path)
    losses(model, *mine(), True, steps=1)  # what is written is the state at the call
    writing.result()
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=path)
    for name, value in state["model"].items():
        torch.testing.assert_close(value.full_tensor().cpu(), expected[name], rtol=0, atol=0)


def main():
    warnings.simplefilter("ignore")
    dist.init_process_group("tpu", timeout=timedelta(seconds=60))
    MESH.append(init_device_mesh("tpu", (SIZE,)))
    record_checks(globals(), sys.argv[1], RANK)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
