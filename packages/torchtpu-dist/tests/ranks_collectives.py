"""Run on every rank by test_collectives.py: each check compares device "tpu" with gloo on the CPU, or by hand.

A group sends CPU tensors through gloo, so the same call on CPU tensors is the independent truth.
"""

import os
import random
import sys
import time
import warnings
from datetime import timedelta

import interleaved
import torch
import torch.distributed as dist

from torchtpu.runtime import client
from torchtpu_dist.testing import record_checks

Op = dist.ReduceOp
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WHOLE = (torch.int32, torch.int64, torch.int8, torch.uint8, torch.int16)
DTYPES = (*FLOATS, *WHOLE[:4])  # gloo has no int16


def values(*shape, dtype=torch.float32, rank=RANK):
    generator = torch.Generator().manual_seed(1000 + rank)
    drawn = torch.randint(1, 5, shape, generator=generator)
    return (drawn > 2) if dtype is torch.bool else drawn.to(dtype)


def same(actual, expected):
    assert actual.device.type == "tpu"
    torch.testing.assert_close(actual.cpu(), expected)


def both(call, *tensors):
    """The call in place on copies on both devices; compares every tensor."""
    host, device = [t.clone() for t in tensors], [t.to("tpu") for t in tensors]
    call(*host)
    call(*device)
    for a, b in zip(device, host, strict=True):
        same(a, b)


def check_all_reduce_of_every_dtype():
    for dtype in DTYPES:
        for op in (Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX):
            x = values(3, 5, dtype=dtype)
            both(lambda t, op=op: dist.all_reduce(t, op), x)


def check_all_reduce_of_bits():
    for dtype in WHOLE:
        for op in (Op.BAND, Op.BOR, Op.BXOR):
            parts = [values(7, dtype=dtype, rank=r) for r in range(SIZE)]
            expected = parts[0]
            for other in parts[1:]:
                expected = {Op.BAND: expected & other, Op.BOR: expected | other, Op.BXOR: expected ^ other}[
                    op
                ]
            x = values(7, dtype=dtype).to("tpu")
            dist.all_reduce(x, op)
            same(x, expected)


def check_all_reduce_of_bool_and_complex():
    parts = torch.stack([values(9, dtype=torch.bool, rank=r) for r in range(SIZE)])
    for op, expected in ((Op.BOR, parts.any(0)), (Op.BAND, parts.all(0)), (Op.SUM, parts.any(0))):
        x = values(9, dtype=torch.bool).to("tpu")
        dist.all_reduce(x, op)
        same(x, expected)
    z = torch.complex(values(4), values(4) + 1)
    expected = sum(torch.complex(values(4, rank=r), values(4, rank=r) + 1) for r in range(SIZE))
    z = z.to("tpu")
    dist.all_reduce(z)
    same(z, expected)


def check_averages_and_factors():
    total = sum(values(6, rank=r) for r in range(SIZE))
    x = values(6).to("tpu")
    dist.all_reduce(x, Op.AVG)
    same(x, total / SIZE)
    x = values(6).to("tpu")
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    same(x, total * 0.5)


def check_scalars_empties_and_views():
    both(dist.all_reduce, torch.tensor(2.5))
    both(dist.all_reduce, values(4, 6).t())
    base = values(4, 6).to("tpu")
    dist.all_reduce(base[:, 2])
    expected = values(4, 6)
    expected[:, 2] = sum(values(4, 6, rank=r)[:, 2] for r in range(SIZE))
    same(base, expected)


def check_the_input_may_change_at_once():
    x = values(100).to("tpu")
    out = torch.zeros(SIZE * 100).to("tpu")
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    x.copy_(torch.zeros(100))
    work.wait()
    same(out, torch.cat([values(100, rank=r) for r in range(SIZE)]))


def check_broadcast_of_bits():
    for dtype in (*DTYPES, torch.bool):
        for root in range(SIZE):
            both(lambda t, root=root: dist.broadcast(t, root), values(5, dtype=dtype))
    odd = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45]) if RANK == 0 else torch.ones(4)
    odd = odd.to("tpu")
    dist.broadcast(odd, 0)
    assert odd.cpu().view(torch.int32).tolist() == [2143289344, -2147483648, 2139095040, 1]


def check_gathers():
    uneven = [torch.zeros(r + 1, 2).to("tpu") for r in range(SIZE)]  # gloo wants one size
    dist.all_gather(uneven, values(RANK + 1, 2).to("tpu"))
    for r, out in enumerate(uneven):
        same(out, values(r + 1, 2, rank=r))
    both(lambda t, out: dist.all_gather_into_tensor(out, t), values(3, 2), torch.zeros(3 * SIZE, 2))
    stacked = torch.zeros(SIZE, 3, 2).to("tpu")
    dist.all_gather_into_tensor(stacked, values(3, 2).to("tpu"))
    same(stacked, torch.stack([values(3, 2, rank=r) for r in range(SIZE)]))
    for root in range(SIZE):
        outs = [torch.zeros(4) for _ in range(SIZE)]
        both(
            lambda t, *o, root=root: dist.gather(t, list(o) if root == RANK else None, root), values(4), *outs
        )


def check_scatter_and_reduce():
    parts = [values(3) + i for i in range(SIZE)]
    for root in range(SIZE):
        both(
            lambda out, *p, root=root: dist.scatter(out, list(p) if root == RANK else None, root),
            torch.zeros(3), *parts,
        )  # fmt: skip
    x = values(5).to("tpu")
    dist.reduce(x, SIZE - 1)
    same(x, sum(values(5, rank=r) for r in range(SIZE)) if RANK == SIZE - 1 else values(5))


def check_reduce_scatters():
    whole = sum(values(2 * SIZE, 3, rank=r) for r in range(SIZE))
    out = torch.zeros(2, 3).to("tpu")
    dist.reduce_scatter_tensor(out, values(2 * SIZE, 3).to("tpu"))
    same(out, whole[2 * RANK : 2 * RANK + 2])
    out = torch.zeros(2, 3).to("tpu")
    dist.reduce_scatter_tensor(out, values(2 * SIZE, 3).to("tpu"), Op.MAX)
    same(
        out, torch.stack([values(2 * SIZE, 3, rank=r) for r in range(SIZE)]).amax(0)[2 * RANK : 2 * RANK + 2]
    )
    given = [values(r + 1) + r for r in range(SIZE)]
    expected = sum(values(RANK + 1, rank=r) + RANK for r in range(SIZE))
    out = torch.zeros(RANK + 1).to("tpu")
    dist.reduce_scatter(out, [t.to("tpu") for t in given])
    same(out, expected)


def check_all_to_alls():
    both(lambda out, t: dist.all_to_all_single(out, t), torch.zeros(2 * SIZE, 3), values(2 * SIZE, 3))
    sent = [r + 1 for r in range(SIZE)]
    taken = [RANK + 1] * SIZE
    both(
        lambda out, t: dist.all_to_all_single(out, t, taken, sent),
        torch.zeros(sum(taken), 2), values(sum(sent), 2),
    )  # fmt: skip
    parts = [(values(r + 1) + 10 * r).to("tpu") for r in range(SIZE)]
    outs = [torch.zeros(RANK + 1).to("tpu") for _ in range(SIZE)]
    dist.all_to_all(outs, parts)
    for sender, out in enumerate(outs):
        same(out, values(RANK + 1, rank=sender) + 10 * RANK)


def check_coalesced_forms():
    x, y = values(3).to("tpu"), values(2, 2).to("tpu")
    with dist._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(y)
    same(x, sum(values(3, rank=r) for r in range(SIZE)))
    same(y, sum(values(2, 2, rank=r) for r in range(SIZE)))
    outs = [torch.zeros(3 * SIZE).to("tpu"), torch.zeros(SIZE).to("tpu")]
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_gather_into_tensor(outs[0], values(3).to("tpu"))
        dist.all_gather_into_tensor(outs[1], values(1).to("tpu"))
    manager.wait()
    same(outs[0], torch.cat([values(3, rank=r) for r in range(SIZE)]))
    same(outs[1], torch.cat([values(1, rank=r) for r in range(SIZE)]))


def check_point_to_point():
    following, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got = torch.zeros(4).to("tpu")
    ops = [
        dist.P2POp(dist.isend, values(4).to("tpu"), following),
        dist.P2POp(dist.irecv, got, before),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(got, values(4, rank=before))
    if RANK == 0:
        dist.send(values(3).to("tpu"), 1, tag=7)
    elif RANK == 1:
        got = torch.zeros(3).to("tpu")
        assert dist.recv(got, tag=7) == 0
        same(got, values(3, rank=0))


def check_objects():
    found = [None] * SIZE
    dist.all_gather_object(found, {"rank": RANK})
    assert found == [{"rank": r} for r in range(SIZE)]
    box = ["hello", 3] if RANK == 0 else [None, None]
    dist.broadcast_object_list(box, 0)
    assert box == ["hello", 3]


def check_subgroups_while_ranks_differ():
    groups = [dist.new_group([r]) for r in range(SIZE)]
    pair = dist.new_group(list(range(SIZE)), backend="tpu_dist")
    for turn in range(1 + 3 * RANK):  # another number of local programs and collectives on every rank
        x = torch.full((turn + 1,), 1.0).to("tpu")
        dist.all_reduce(x, group=groups[RANK])
        same(x, torch.ones(turn + 1))
    x = values(4).to("tpu")
    dist.all_reduce(x, group=pair)
    same(x, sum(values(4, rank=r) for r in range(SIZE)))
    dist.barrier(group=pair)
    dist.destroy_process_group(pair)


def check_random_interleavings_of_groups():
    interleaved.run(RANK, SIZE)


def check_collectives_are_launched_in_the_order_of_their_calls():
    os.environ["TORCHTPU_COLLECTIVE_CHECK"] = "new"
    try:
        slow, fast = (
            dist.new_group(timeout=timedelta(seconds=20)),
            dist.new_group(timeout=timedelta(seconds=20)),
        )
        lane = slow._lane
        announce = lane.agreement.announce
        lane.agreement.announce = lambda *args: time.sleep(0.2) or announce(*args)
        order = []
        for group in (slow, fast):
            launch = group._programs.launch

            def noted(*args, group=group, launch=launch):
                order.append(group)
                return launch(*args)

            group._programs.launch = noted
        tensors = [values(4).to("tpu") for _ in range(6)]
        calls = [slow, fast, fast, slow, slow, fast]
        works = [dist.all_reduce(x, group=g, async_op=True) for x, g in zip(tensors, calls, strict=True)]
        for work, x in zip(works, tensors, strict=True):
            work.wait()
            same(x, sum(values(4, rank=r) for r in range(SIZE)))
        assert order == calls
        interleaved.run(RANK, SIZE, rounds=60)
    finally:
        del os.environ["TORCHTPU_COLLECTIVE_CHECK"]


def check_handles():
    x = values(8).to("tpu")
    work = dist.all_reduce(x, async_op=True)
    assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    same(work.get_future().wait()[0], sum(values(8, rank=r) for r in range(SIZE)))
    then = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] * 1)
    same(then.wait(), SIZE * sum(values(8, rank=r) for r in range(SIZE)))


def check_errors_before_anything_runs():
    for call in (
        lambda: dist.all_gather_into_tensor(torch.zeros(5).to("tpu"), torch.zeros(2).to("tpu")),
        lambda: dist.all_reduce(torch.zeros(2).to("tpu"), Op.BAND),
    ):
        try:
            call()
        except (ValueError, TypeError, RuntimeError):
            continue
        raise AssertionError("no error")
    both(dist.all_reduce, values(2))


def check_ranks_keep_their_programs_on_disk():
    import jax

    from torchtpu.runtime import cache

    if cache.folder() is None:
        return
    drawn = [random.random()]
    dist.broadcast_object_list(drawn, 0)  # a program that no earlier run has kept, the same on every rank
    lowered = jax.jit(lambda x: x + drawn[0]).lower(jax.device_put(1.0, client.device()))
    cache.compile(lowered, {})
    dist.barrier()
    before = cache.hits[0]
    cache.compile(lowered, {})
    assert cache.hits[0] == before + 1


def check_the_users_configuration():
    import jax

    assert jax.config.jax_cpu_collectives_implementation in (None, "none", BEFORE)
    assert not jax.config.jax_enable_x64
    assert dist.get_backend() == "tpu" and dist.get_world_size() == SIZE and dist.get_rank() == RANK


BEFORE = None


def main():
    global BEFORE
    warnings.simplefilter("ignore")
    import jax

    BEFORE = jax.config.jax_cpu_collectives_implementation
    dist.init_process_group("tpu", timeout=timedelta(seconds=20))
    record_checks(globals(), sys.argv[1], RANK)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
