"""Run on every rank by test_trouble.py: the last all_reduce goes wrong in the way that the argument names."""

import os
import signal
import sys
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

LIMIT = 3


def main(trouble):
    warnings.simplefilter("ignore")
    rank = int(os.environ["RANK"])
    store = dist.TCPStore("127.0.0.1", int(os.environ["STORE"]), is_master=False)
    dist.init_process_group(
        "tpu",
        store=store,
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=LIMIT),
    )
    x, y = torch.ones(4).to("tpu"), torch.ones(8).to("tpu")
    for t in (x, x, y, x, y):
        dist.all_reduce(t)
    first = rank == 0
    try:
        if trouble == "another size":
            dist.all_reduce(y if first else x)
        elif trouble == "another operation":
            dist.broadcast(x, 0) if first else dist.all_reduce(x)
        elif trouble == "another type":
            dist.all_reduce(x if first else torch.ones(4, dtype=torch.int32).to("tpu"))
        elif trouble == "one more":
            if first:
                dist.all_reduce(x)
        elif trouble == "asynchronous":
            work = dist.all_reduce(y if first else x, async_op=True)
            assert isinstance(work.get_future(), torch.futures.Future)
            work.wait()
        elif trouble.startswith("killed"):
            if rank == int(trouble.split()[-1]):
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(x)
        elif trouble == "late":
            if not first:
                time.sleep(3 * LIMIT)
            dist.all_reduce(x)
        elif trouble == "destroyed":
            if first:
                dist.all_reduce(x, async_op=True)
            dist.destroy_process_group()
    except RuntimeError as error:
        print("RAISED", type(error).__name__, error, flush=True)
        try:
            dist.all_reduce(x)
        except RuntimeError as again:
            print("AGAIN", again, flush=True)
    print("END", flush=True)


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
