"""`TpuProcessGroup`: c10d's collectives as programs over the devices of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchtpu.errors import user_frame
from torchtpu_dist import bodies, rendezvous
from torchtpu_dist.blocks import block, direct, flat_part, kind, named, put_all, rows, shape_of
from torchtpu_dist.programs import Body, Programs
from torchtpu_dist.reductions import reduction
from torchtpu_dist.work import Job, Lane

CPU = torch.device("cpu")


def create(options: Any, backend_options: Any) -> TpuProcessGroup:
    """The group that c10d asks for; the first one of a process joins it to the others."""
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    if dist.is_initialized():
        world = rendezvous.current()
    else:
        world = rendezvous.join(options.store, options.group_rank, options.group_size, options.timeout)
    return TpuProcessGroup(options.store, options.group_rank, ranks, world, options.timeout)


class TpuProcessGroup(dist.ProcessGroup):
    """A process group whose tensors on device ``tpu`` move by XLA, and tensors on the CPU by gloo.

    Each collective is one program over the group's devices; ``send`` and ``recv`` go through the hosts.
    """

    def __init__(
        self, store: Any, rank: int, ranks: tuple[int, ...], world: rendezvous.World, timeout: timedelta
    ) -> None:
        super().__init__(rank, len(ranks))
        self._store, self._rank, self._ranks = store, rank, ranks
        self._programs = Programs([world.devices[r] for r in ranks])
        self._lane = Lane(dist.PrefixStore("tpu/", store), ranks, rank, timeout)
        self._host = _host_group(dist.PrefixStore("host/", store), rank, len(ranks), timeout)
        self._name, self._desc = "", "undefined"
        self._collected: list[Any] | None = None

    # What c10d asks a group

    def size(self) -> int:
        """Number of ranks."""
        return len(self._ranks)

    def rank(self) -> int:
        """This process's rank in the group."""
        return self._rank

    def name(self) -> str:
        """The backend's name."""
        return "tpu"

    getSize, getRank = size, rank
    getBackendName = _get_backend_name = name

    @property
    def group_name(self) -> str:
        """The name under which c10d registers the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """The user's description."""
        return self._desc

    def getGroupName(self) -> str:
        """For C++ callers."""
        return self._name

    def getGroupDesc(self) -> str:
        """For C++ callers."""
        return self._desc

    def _set_group_name(self, name: str) -> None:
        self._name = self._lane.history.name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [CPU, torch.device("tpu")]

    def _get_backend(self, device: torch.device) -> Any:
        return self

    supports_splitting = supports_coalescing = supports_tensor_alloc = False
    bound_device_id = None

    def get_group_store(self) -> Any:
        """The group's store."""
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """Collectives that are not complete after ``timeout`` raise."""
        self._lane.timeout = timeout.total_seconds()
        self._host.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """The lane numbers collectives from 1."""

    def shutdown(self) -> None:
        """End the group's thread, and its connections between hosts."""
        self._lane.close(patience=1.0)
        self._host.shutdown()

    def abort(self) -> None:
        """Give up what runs; what XLA has launched it cannot take back."""
        self._lane.close(patience=0.0)
        self._host.abort()

    # How a collective is run

    def _run(
        self,
        what: str,
        key: tuple[Any, ...],
        body: Any,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        ready: Callable[[list[Any]], list[Any]] | None = None,
        facts: Any = None,
    ) -> Job:
        """Launch ``body`` on the inputs' blocks; its results (through ``ready``) go into ``outputs``.

        With ``facts``, those of all ranks are exchanged first, and ``body`` makes key and body from them.
        """
        blocks = [block(t) for t in inputs]
        outputs = list(outputs)
        at_once = all(direct(t) for t in outputs)

        def run(met: Any) -> list[Tensor]:
            chosen_key, chosen_body = (key, body) if facts is None else body(met)
            results = self._programs.launch(chosen_key, chosen_body, blocks)
            self._lane.launched()
            for result in results:
                result.block_until_ready()
            arrays.extend(ready(results) if ready else results)
            if at_once:
                put_all(outputs, arrays)
            return outputs

        arrays: list[Any] = []
        job = self._lane.submit(what, user_frame(), run, facts, facts is not None)
        if not at_once:  # a strided view is written by a torch operator, on the caller's thread
            job.wait()
            put_all(outputs, arrays)
        return job

    # Collectives

    def allreduce(self, tensors: Any, opts: Any = None, **kwargs: Any) -> Any:
        """Reduce tensors over the ranks, in place."""
        tensors, opts = _listed(tensors), opts or _options(dist.AllreduceOptions(), kwargs)
        if _on_host(tensors):
            return self._host.allreduce(tensors, opts)
        name, factor = reduction(opts.reduceOp, tensors[0].dtype)
        what = f"all_reduce({name}, {_all_named(tensors)})"
        body = bodies.all_reduce(name, factor, self.size())
        return self._run(what, ("all_reduce", name, factor), body, tensors, tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Reduce several tensors in one program."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Any, opts: Any) -> Any:
        """Reduce onto the root; the other ranks' tensors stay as they are."""
        tensors = _listed(tensors)
        if _on_host(tensors):
            return self._host.reduce(tensors, opts)
        name, factor = reduction(opts.reduceOp, tensors[0].dtype)
        what = f"reduce({name}, to {opts.rootRank}, {_all_named(tensors)})"
        body = bodies.all_reduce(name, factor, self.size())
        outputs = tensors if opts.rootRank == self._rank else []
        return self._run(what, ("all_reduce", name, factor), body, tensors, outputs)

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        """The root's values on every rank."""
        tensors = _listed(tensors)
        if _on_host(tensors):
            return self._host.broadcast(tensors, opts)
        what = f"broadcast(from {opts.rootRank}, {_all_named(tensors)})"
        return self._run(
            what, ("broadcast", opts.rootRank), bodies.broadcast(opts.rootRank), tensors, tensors
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, **kwargs: Any) -> Any:
        """Every rank's tensor in a list of one per rank; the shapes may differ from rank to rank."""
        if _on_host(inputs):
            return self._host.allgather(outputs, inputs, opts or dist.AllgatherOptions())
        (given,), (mine,) = outputs, inputs
        self._expect(
            len(given) == self.size(), f"all_gather needs {self.size()} output tensors, got {len(given)}"
        )
        self._expect(
            given[self._rank].numel() == mine.numel() and given[self._rank].dtype == mine.dtype,
            f"all_gather: the output for this rank is {named(given[self._rank])}, its input {named(mine)}",
        )
        shapes = [shape_of(t) for t in given]
        what = f"all_gather({_all_named(given)})"
        return self._run(what, ("gather_apart", *shapes), bodies.gather_apart(shapes), [mine], given)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`allgather` of several tensors."""
        jobs = [
            self.allgather([o], [i], opts) for o, i in zip(_transposed(outputs, inputs), inputs, strict=True)
        ]
        return _Together(jobs)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None, **kwargs: Any) -> Any:
        """Every rank's tensor in one, one after the other."""
        if _on_host([input]):
            return self._host.all_gather_single(output, input, opts or dist.AllgatherOptions())
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`all_gather_single` of several tensors in one program."""
        if _on_host(inputs):
            return self._host.all_gather_single_coalesced(outputs, inputs, opts or dist.AllgatherOptions())
        for output, mine in zip(outputs, inputs, strict=True):
            self._expect_ratio("all_gather_into_tensor", output, mine)
        shapes = [shape_of(t) for t in outputs]
        what = f"all_gather_into_tensor({_all_named(inputs)})"
        return self._run(what, ("all_gather", *shapes), bodies.all_gather(shapes), inputs, outputs)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        """Every rank's tensor on the root."""
        if _on_host(inputs):
            return self._host.gather(outputs, inputs, opts)
        (mine,), at_root = inputs, opts.rootRank == self._rank
        given = outputs[0] if at_root else []
        shapes = [shape_of(mine)] * self.size()
        what = f"gather(to {opts.rootRank}, {named(mine)})"
        return self._run(what, ("gather_apart", *shapes), bodies.gather_apart(shapes), [mine], given)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        """The root's r-th tensor on rank r."""
        if _on_host(outputs):
            return self._host.scatter(outputs, inputs, opts)
        (output,), root = outputs, opts.rootRank
        given = inputs[0] if root == self._rank else [torch.empty_like(output) for _ in self._ranks]
        what = f"scatter(from {root}, {named(output)})"
        body, shape = bodies.exchange(output.numel()), shape_of(output)
        return self._run(what, ("exchange", output.numel()), body, given, [output], rows([(root, shape)]))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, **kwargs: Any) -> Any:
        """The r-th tensor of every rank, reduced, on rank r; the r-th shapes may differ."""
        opts = opts or dist.ReduceScatterOptions()
        if _on_host(outputs):
            return self._host.reduce_scatter(outputs, inputs, opts)
        (output,), (given,) = outputs, inputs
        self._expect(
            len(given) == self.size() and given[self._rank].numel() == output.numel(),
            f"reduce_scatter needs {self.size()} input tensors, this rank's as large as its output",
        )
        name, factor = reduction(opts.reduceOp, output.dtype)
        what = f"reduce_scatter({name}, {_all_named(given)})"
        body = bodies.reduce_scatter_apart(name, factor, self.size())
        ready = flat_part(output.numel(), shape_of(output))
        return self._run(what, ("reduce_scatter_apart", name, factor), body, given, [output], ready)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None, **kwargs: Any) -> Any:
        """The r-th part of every rank's tensor, reduced, on rank r."""
        if _on_host([input]):
            return self._host.reduce_scatter_single(output, input, opts or dist.ReduceScatterOptions())
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`reduce_scatter_single` of several tensors in one program."""
        opts = opts or dist.ReduceScatterOptions()
        if _on_host(inputs):
            return self._host.reduce_scatter_single_coalesced(outputs, inputs, opts)
        for output, mine in zip(outputs, inputs, strict=True):
            self._expect_ratio("reduce_scatter_tensor", mine, output)
        name, factor = reduction(opts.reduceOp, inputs[0].dtype)
        shapes = [shape_of(t) for t in outputs]
        what = f"reduce_scatter_tensor({name}, {_all_named(inputs)})"
        body = bodies.reduce_scatter(name, factor, self.size(), shapes)
        return self._run(what, ("reduce_scatter", name, factor, *shapes), body, inputs, outputs)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Any,
        input_splits: Any,
        opts: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Part r of the input's first dimension to rank r; the parts may differ in size."""
        if _on_host([input]):
            return self._host.all_to_all_single(
                output, input, output_splits, input_splits, opts or dist.AllToAllOptions()
            )
        if not output_splits and not input_splits:
            self._expect(
                output.numel() == input.numel() and input.shape[0] % self.size() == 0,
                f"all_to_all_single of {named(input)} into {named(output)} for {self.size()} ranks without splits",
            )
            shape = shape_of(output)
            what = f"all_to_all_single({named(input)})"
            return self._run(
                what, ("all_to_all", *shape), bodies.all_to_all(self.size(), shape), [input], [output]
            )
        given = list(input.split(input_splits or [len(input) // self.size()] * self.size()))
        taken = list(output.split(output_splits or [len(output) // self.size()] * self.size()))
        return self.alltoall(taken, given)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, **kwargs: Any) -> Any:
        """The r-th input to rank r, each of its own size."""
        if _on_host(inputs):
            return self._host.alltoall(outputs, inputs, opts or dist.AllToAllOptions())
        self._expect(
            len(inputs) == len(outputs) == self.size(),
            f"all_to_all needs {self.size()} inputs and outputs, got {len(inputs)} and {len(outputs)}",
        )
        sizes = [[t.numel() for t in inputs], [t.numel() for t in outputs]]

        def agreed(facts: list[Any]) -> tuple[Any, Body]:
            self._check_parts(facts)
            longest = max(max(sent) for sent, _ in facts)
            return ("exchange", longest), bodies.exchange(longest)

        ready = rows([(r, shape_of(t)) for r, t in enumerate(outputs)])
        what = f"all_to_all({kind(inputs[0])})"
        return self._run(what, (), agreed, inputs, outputs, ready, sizes)

    def _check_parts(self, facts: list[Any]) -> None:
        for sender, (sent, _) in enumerate(facts):
            for receiver, (_, expected) in enumerate(facts):
                self._expect(
                    sent[receiver] == expected[sender],
                    f"all_to_all: rank {self._ranks[sender]} sends {sent[receiver]} numbers to rank "
                    f"{self._ranks[receiver]}, which expects {expected[sender]}",
                )

    def _expect(self, condition: bool, message: str) -> None:
        if not condition:
            raise ValueError(f"torchtpu: {message}")

    def _expect_ratio(self, what: str, large: Tensor, small: Tensor) -> None:
        self._expect(
            large.numel() == self.size() * small.numel() and large.dtype == small.dtype,
            f"{what} between {named(large)} and {named(small)} for {self.size()} ranks",
        )

    # Between two ranks, and without data

    def send(self, tensors: list[Tensor], rank: int, tag: int = 0) -> Any:
        """Send a tensor to one rank, through the hosts."""
        return self._host.send([t.detach().cpu() for t in tensors], rank, tag)

    def recv(self, tensors: list[Tensor], rank: int, tag: int = 0) -> Any:
        """Receive a tensor from one rank."""
        return self._received(tensors, lambda hosts: self._host.recv(hosts, rank, tag))

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Any:
        """Receive a tensor from whichever rank sends one."""
        return self._received(tensors, lambda hosts: self._host.recv_anysource(hosts, tag))

    def _received(self, tensors: list[Tensor], start: Callable[[list[Tensor]], Any]) -> Any:
        if _on_host(tensors):
            return start(tensors)
        hosts = [torch.empty(t.shape, dtype=t.dtype) for t in tensors]
        return Received(start(hosts), hosts, tensors)

    def barrier(self, opts: Any = None, **kwargs: Any) -> Any:
        """Wait for all ranks, and for the collectives that were queued before."""
        return self.allreduce([torch.zeros(1, dtype=torch.int32, device="tpu")], dist.AllreduceOptions())

    def _start_coalescing(self, device: torch.device) -> None:
        """Collectives are launched one by one; a list of handles is kept."""

    def _end_coalescing(self, device: torch.device) -> Any:
        job = self._lane.last
        return job if job is not None else _Together([])


class Received(dist.Work):
    """The handle of a receive: the tensor gets its values in `wait`."""

    def __init__(self, work: Any, hosts: list[Tensor], tensors: list[Tensor]) -> None:
        super().__init__()
        self._work, self._hosts, self._tensors = work, hosts, tensors

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the sender."""
        self._work.wait(timeout) if timeout else self._work.wait()
        with torch.no_grad():
            for host, tensor in zip(self._hosts, self._tensors, strict=True):
                tensor.detach().copy_(host)
        self._hosts, self._tensors = [], []
        return True

    def is_completed(self) -> bool:
        """Whether the values have arrived."""
        return bool(self._work.is_completed())

    def _source_rank(self) -> int:
        return int(self._work._source_rank())

    source_rank = _source_rank


class _Together(dist.Work):
    """One handle for several."""

    def __init__(self, jobs: list[Any]) -> None:
        super().__init__()
        self._jobs = jobs

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return all(job.wait(timeout) for job in self._jobs)

    def is_completed(self) -> bool:
        return all(job.is_completed() for job in self._jobs)

    def get_future(self) -> Any:
        if len(self._jobs) == 1:
            return self._jobs[0].get_future()
        return torch.futures.collect_all([job.get_future() for job in self._jobs])


def _host_group(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """A group of the same ranks for tensors on the CPU."""
    group = dist.ProcessGroup(store, rank, size)
    gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(CPU, dist.ProcessGroup.BackendType.GLOO, gloo)
    return group


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _options(options: Any, given: dict[str, Any]) -> Any:
    if "op" in given:
        options.reduceOp = given["op"]
    return options


def _on_host(tensors: Any) -> bool:
    first = tensors[0] if len(tensors) else None
    while isinstance(first, list | tuple):
        first = first[0] if first else None
    return first is not None and first.device.type != "tpu"


def _all_named(tensors: Sequence[Tensor]) -> str:
    return ", ".join(map(named, tensors))


def _transposed(outputs: Any, inputs: Any) -> list[list[Tensor]]:
    """c10d lists the outputs of `allgather_coalesced` by rank; here by tensor."""
    return [[by_rank[i] for by_rank in outputs] for i in range(len(inputs))]
