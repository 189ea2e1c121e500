"""Random collectives over overlapping groups, each rank with other work between them and other moments to wait."""

import itertools
import os
import random
import time
from datetime import timedelta

import torch
import torch.distributed as dist

ROUNDS, MOST, LENGTHS = 200, 4, (1, 3)


def content(round_, place, rank, count):
    """What a rank brings to a collective; whole numbers, so that every order of a sum is exact."""
    generator = torch.Generator().manual_seed(100_000 * round_ + 1000 * place + rank)
    return torch.randint(-50, 50, (count,), generator=generator).float()


def all_reduce(group, members, me, bring, length):
    x = bring(me, length).to("tpu")
    work = dist.all_reduce(x, group=group, async_op=True)
    return work, x, sum(bring(r, length) for r in members)


def largest(group, members, me, bring, length):
    x = bring(me, length).to("tpu")
    work = dist.all_reduce(x, dist.ReduceOp.MAX, group=group, async_op=True)
    return work, x, torch.stack([bring(r, length) for r in members]).amax(0)


def broadcast(group, members, me, bring, length):
    x = bring(me, length).to("tpu")
    work = dist.broadcast(x, members[-1], group=group, async_op=True)
    return work, x, bring(members[-1], length)


def all_gather(group, members, me, bring, length):
    out = torch.zeros(len(members) * length).to("tpu")
    work = dist.all_gather_into_tensor(out, bring(me, length).to("tpu"), group=group, async_op=True)
    return work, out, torch.cat([bring(r, length) for r in members])


def reduce_scatter(group, members, me, bring, length):
    out, total = torch.zeros(length).to("tpu"), len(members) * length
    work = dist.reduce_scatter_tensor(out, bring(me, total).to("tpu"), group=group, async_op=True)
    return work, out, sum(bring(r, total) for r in members).chunk(len(members))[members.index(me)]


def all_to_all(group, members, me, bring, length):
    total = len(members) * length
    out = torch.zeros(total).to("tpu")
    work = dist.all_to_all_single(out, bring(me, total).to("tpu"), group=group, async_op=True)
    place = members.index(me)
    return work, out, torch.cat([bring(r, total).chunk(len(members))[place] for r in members])


KINDS = (all_reduce, largest, broadcast, all_gather, reduce_scatter, all_to_all)


def local_work(own):
    """Something that the other ranks do not do now: a pause, or programs on the device."""
    if own.random() < 0.3:
        time.sleep(own.random() * 0.003)
    for _ in range(own.randrange(3)):
        x = torch.full((own.randrange(1, 5),), 2.0).to("tpu")
        assert x.clone().cpu().sum() == 2 * x.numel()


def settle(pending, own, keep):
    """Wait for all but ``keep`` of the collectives, in this rank's own order, and compare."""
    own.shuffle(pending)
    while len(pending) > keep:
        what, work, actual, expected = pending.pop()
        work.wait()
        assert torch.equal(actual.cpu(), expected), f"{what}: {actual.cpu()} is not {expected}"


def run(rank, size, rounds=ROUNDS):
    """All rounds; an error names the seed, which ``INTERLEAVED_SEED`` sets."""
    box = [int(os.environ.get("INTERLEAVED_SEED") or random.SystemRandom().randrange(10**6))]
    dist.broadcast_object_list(box, 0)
    seed = box[0]
    plan, own = random.Random(seed), random.Random(f"{seed} {rank}")  # the same on all ranks; not the same
    subsets = [m for n in range(2, size + 1) for m in itertools.combinations(range(size), n)]
    limit = timedelta(seconds=20)  # a new group has torch's 30 minutes, whatever that of the others is
    groups = {members: dist.new_group(list(members), timeout=limit) for members in subsets}
    pending = []
    try:
        for round_ in range(rounds):
            for place in range(plan.randrange(1, MOST + 1)):
                members, kind, length = plan.choice(subsets), plan.choice(KINDS), plan.choice(LENGTHS)
                if rank not in members:
                    continue
                local_work(own)

                def bring(r, count, round_=round_, place=place):
                    return content(round_, place, r, count)

                started = kind(groups[members], members, rank, bring, length)
                pending.append((f"{kind.__name__} {place} of round {round_} among {members}", *started))
                settle(pending, own, keep=own.randrange(6))
        settle(pending, own, keep=0)
    except Exception as error:
        raise AssertionError(f"INTERLEAVED_SEED={seed}: {error}") from error
