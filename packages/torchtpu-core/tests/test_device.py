"""The device alone: allocation, copies, views, random state, saving; no operator pack needed."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch

import torchtpu

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.uint16,
]  # fmt: skip


def _values(dtype, shape=(3, 4)):
    return torch.randint(0, 2, shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip(dtype):
    x = _values(dtype)
    y = x.to("tpu")
    assert y.device == torch.device("tpu", 0) and y.dtype == dtype and y.is_tpu
    assert y.cpu().view(torch.uint8).equal(x.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strided_copies_both_ways(dtype):
    x = _values(dtype, (4, 6))
    back = x.t()[1:4].to("tpu").cpu()
    assert back.contiguous().view(torch.uint8).equal(x.t()[1:4].contiguous().view(torch.uint8))
    target = torch.zeros(6, 4).to(dtype).to("tpu")
    target.t()[1:3].copy_(x[:2])
    want = torch.zeros(6, 4).to(dtype)
    want.t()[1:3].copy_(x[:2])
    assert target.cpu().view(torch.uint8).equal(want.view(torch.uint8))
    host = torch.zeros(6, 4).to(dtype)
    host.t().copy_(x.to("tpu"), non_blocking=True)
    assert host.t().contiguous().view(torch.uint8).equal(x.view(torch.uint8))


def test_views_share_memory():
    x = torch.zeros(4, 4, device="tpu")
    alias, detached = x.view(16), x.detach()
    x[1:3, 2].copy_(torch.ones(2))
    assert alias.cpu().sum() == 2 and detached.cpu().sum() == 2
    assert alias.untyped_storage()._cdata == x.untyped_storage()._cdata


def test_zero_size_and_zero_dim():
    assert torch.empty(0, 3, device="tpu").cpu().shape == (0, 3)
    assert torch.tensor(2.5).to("tpu").item() == 2.5
    assert torch.tensor(2.5, dtype=torch.bfloat16).to("tpu").item() == 2.5


def test_resize_and_set():
    x = torch.arange(6.0).to("tpu")
    x.resize_(2, 2)
    assert x.cpu().tolist() == [[0, 1], [2, 3]]
    y = torch.empty(0, device="tpu")
    y.set_(x)
    x.copy_(torch.ones(2, 2))
    assert y.cpu().tolist() == [[1, 1], [1, 1]]
    grown = torch.arange(3.0).to("tpu").resize_(5)
    assert grown.cpu()[:3].tolist() == [0, 1, 2]


def test_data_and_version_counter():
    x = torch.zeros(3).to("tpu").requires_grad_()
    before = x._version
    x.data.copy_(torch.ones(3))
    assert x.cpu().tolist() == [1, 1, 1] and x._version == before
    x.data = torch.full((2,), 5.0).to("tpu")
    assert x.cpu().tolist() == [5, 5]


def test_save_load_pickle_deepcopy():
    x = torch.randn(3, 4).to("tpu")
    pair = {"x": x, "alias": x[1:], "b": torch.randn(2).bfloat16().to("tpu")}
    file = io.BytesIO()
    torch.save(pair, file)
    for where, device in ((None, "tpu"), ("cpu", "cpu"), ("tpu", "tpu")):
        file.seek(0)
        got = torch.load(file, map_location=where, weights_only=True)
        assert got["x"].device.type == device
        assert got["x"].cpu().equal(x.cpu()) and got["b"].cpu().equal(pair["b"].cpu())
        got["x"].copy_(torch.zeros(3, 4))
        assert got["alias"].cpu().abs().sum() == 0
    file = io.BytesIO()
    torch.save(x.cpu(), file)
    file.seek(0)
    assert torch.load(file, map_location="tpu").cpu().equal(x.cpu())
    twin = copy.deepcopy(x)
    twin.copy_(torch.zeros(3, 4))
    assert not x.cpu().equal(twin.cpu())


@pytest.mark.parametrize("legacy", [False, True], ids=["pickle", "legacy file"])
def test_pickles_keep_values_and_aliases(legacy):
    x = torch.randn(3, 4).to("tpu")
    held = {"x": x, "alias": x[1:], "t": x.t(), "b": torch.randn(2).bfloat16().to("tpu"),
            "w": torch.nn.Parameter(torch.randn(2).to("tpu")), "none": torch.empty(0, 2, device="tpu")}  # fmt: skip
    if legacy:
        file = io.BytesIO()
        torch.save(held, file, _use_new_zipfile_serialization=False)
        file.seek(0)
        got = torch.load(file)
    else:
        got = pickle.loads(pickle.dumps(held))
    for name, want in held.items():
        assert got[name].device == want.device
        assert got[name].stride() == want.stride()
        assert got[name].detach().cpu().equal(want.detach().cpu())
    got["x"].copy_(torch.zeros(3, 4))
    assert legacy == (
        got["alias"].cpu().abs().sum() == 0
    )  # pickle writes each alias for itself, as on the CPU
    assert x.cpu().abs().sum() > 0
    assert isinstance(got["w"], torch.nn.Parameter)


def test_a_storage_pickles():
    x = torch.tensor([1, 2, 255], dtype=torch.uint8).to("tpu")
    twin = pickle.loads(pickle.dumps(x.untyped_storage()))
    assert twin.device.type == "tpu"
    assert twin.tolist() == [1, 2, 255]


def test_random_state():
    torch.manual_seed(3)
    assert torch.tpu.initial_seed() == 3
    state = torch.tpu.get_rng_state()
    with torch.random.fork_rng(device_type="tpu"):
        torch.tpu.manual_seed(9)
    assert torch.tpu.get_rng_state().equal(state)
    with pytest.raises(TypeError):
        torch.tpu.set_rng_state(torch.zeros(16))


def test_errors_name_the_cause():
    with pytest.raises(RuntimeError, match="invalid device"):
        torch.empty(2, device="tpu:1")
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(-1, device="tpu")


def test_accelerator_and_module():
    assert torch.accelerator.current_accelerator().type == "tpu"
    assert torch.accelerator.is_available() and torch.tpu.device_count() == 1
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() >= 0 and torch.tpu.get_device_name()
    start, end = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
    start.record()
    end.record()
    assert start.elapsed_time(end) >= 0


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_import_torch_is_silent_and_without_jax():
    assert _python("import sys, torch; torch.device('tpu'); assert 'jax' not in sys.modules") == ""


def test_import_order_does_not_matter():
    assert _python("import torchtpu, torch; torch.device('tpu')") == ""


def test_opt_out():
    code = "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'; import torch; assert not hasattr(torch, 'tpu')"
    assert _python(code) == ""


def test_forced_absent_tpu_is_an_error_at_once():
    code = """
import os; os.environ['TORCHTPU_PLATFORM'] = 'tpu'
import torch
try: torch.zeros(2).to('tpu')
except RuntimeError as e: print('no TPU' in str(e))
"""
    assert "True" in _python(code)


def test_global_jax_settings_stay():
    code = """
import torch, jax
before = dict(jax.config.values)
torch.ones(3).to('tpu').cpu()
after = dict(jax.config.values)
assert before == after, [k for k in after if before.get(k) != after[k]]
assert jax.numpy.ones(3).dtype == 'float32'
"""
    _python("import os; os.environ['TORCHTPU_PLATFORM'] = 'cpu'\n" + code)


def test_forked_child_gets_an_error():
    code = """
import os, torch, warnings
warnings.simplefilter('ignore')
x = torch.ones(3).to('tpu')
pid = os.fork()
if pid == 0:
    try:
        torch.ones(2, device='tpu'); os._exit(1)
    except RuntimeError as e:
        os._exit(0 if 'forked' in str(e) else 2)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    _python("import os; os.environ['TORCHTPU_PLATFORM'] = 'cpu'\n" + code)


def test_an_error_in_an_autograd_hook_does_not_end_the_process():
    """torch has no way to hand it on from here, but the hook's own error is shown and work goes on."""
    # core alone multiplies on the CPU, and says so once
    said = _python("""
import threading, torch, warnings
warnings.simplefilter("ignore")
seen = []
threading.excepthook = lambda lost: seen.append(repr(lost.exc_value))
def hook(*_):
    raise KeyError("mine")
def run(place):
    x = torch.ones(2, device="tpu", requires_grad=True)
    unpack = hook if place == "unpack" else lambda t: t
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        y = x * x
    if place == "tensor":
        y.register_hook(hook)
    if place == "node":
        y.grad_fn.register_prehook(hook)
    if place == "accumulated":
        x.register_post_accumulate_grad_hook(hook)
    try:
        y.sum().backward()
    except KeyError as error:
        seen.append(repr(error))
    except SystemError:
        pass
    else:
        print(x.grad.tolist())
for place in ("tensor", "node", "accumulated", "unpack", "none"):
    run(place)
print(seen)
""")
    assert said.splitlines() == ["[2.0, 2.0]", str(["KeyError('mine')"] * 4)]


def test_deepcopy_keeps_aliases():
    x = torch.arange(6.0).to("tpu")
    weight = torch.nn.Parameter(x[:2].clone())
    got = copy.deepcopy([x, x[1:], x.view(2, 3).t(), weight, weight])
    got[0].copy_(torch.ones(6))
    assert [t.tolist() for t in got[1:3]] == [[1.0] * 5, [[1.0] * 2] * 3]
    assert got[2].stride() == (1, 3)
    assert got[3] is got[4]
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("fused", [False, True], ids=["strict", "fused"])
def test_moving_a_module_keeps_its_parameters(fused):
    """As with CUDA: tied weights stay tied, and an optimizer made before has the right tensors."""
    first, last = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
    last.weight = first.weight
    model = torch.nn.Sequential(first, last)
    weight, values = first.weight, first.weight.detach().clone()
    with torchtpu.mode("fused" if fused else "strict"):
        model.to("tpu")
        assert first.weight is weight
        assert last.weight is weight
        assert weight.device.type == "tpu"
        assert weight.is_leaf
        assert weight.detach().cpu().equal(values)
        weight.grad = torch.ones(5, 3, device="tpu")
        twin = copy.deepcopy(model)
        assert twin[0].weight is twin[1].weight
        model.cpu()
        assert weight.grad.device.type == weight.device.type == "cpu"
        assert weight.detach().equal(values)


def test_data_of_another_kind_is_an_error():
    x = torch.ones(2, 2, device="tpu")
    for other in (torch.ones(2, 2, device="meta"), torch.eye(2).to_sparse()):
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            x.data = other
    assert x.tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("mode", ["strict", "debug", "fused"])
def test_assertions_wait_and_raise(mode):
    with torchtpu.mode(mode):
        torch._assert_async(torch.tensor(2).to("tpu"))
        with pytest.raises(RuntimeError, match="single nonzero value, but got zero"):
            torch._assert_async(torch.tensor(0).to("tpu"))
        with pytest.raises(RuntimeError, match="too long"):
            torch._assert_async(torch.tensor(0.0).to("tpu"), "too long")
