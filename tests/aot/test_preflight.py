"""Preflight: what a script would do on a TPU that is not here, told before anyone pays for one."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import jax.numpy as jnp
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchtpu
from torchtpu.diagnostics.preflight import advice, cuda, migrate, script
from torchtpu.diagnostics.preflight.compile import Worker
from torchtpu.diagnostics.preflight.drive import Flight
from torchtpu.runtime import portable
from torchtpu.runtime import program as programs

pytest.importorskip("libtpu")
V5E = "v5e:2x2"

HELPER = "import torch\ndevice = torch.device('cuda:0')\n"
TRAIN = """\
import torch
from helper import device
from torch.cuda.amp import autocast
from torch.nn import functional as F

torch.backends.cudnn.benchmark = True
assert torch.cuda.is_available() and device.type == "cuda"
model = torch.nn.Linear(256, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(50):
    x = torch.randn(64, 256, device=device)
    with autocast(dtype=torch.bfloat16):
        loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
raise SystemExit("never reached")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The command on a script for CUDA: its folder, what it printed, and the JSON."""
    folder = tmp_path_factory.mktemp("train")
    (folder / "helper.py").write_text(HELPER)
    (folder / "train.py").write_text(TRAIN)
    command = [sys.executable, "-c", "from torchtpu.cli import run; run()", "preflight", "train.py"]
    command += ["--topology", V5E, "--json", "out.json", "--html", "out.html"]
    env = {**os.environ, "TORCHTPU_MODE": "strict"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout, json.loads((folder / "out.json").read_text())


def line(text):
    return TRAIN[: TRAIN.index(text)].count("\n") + 1


def test_the_script_stops_after_its_steps_and_everything_compiles(trained):
    _, said, found = trained
    assert [row for row in said.splitlines() if re.fullmatch(r"\d+ 0\.0", row)] == ["0 0.0", "1 0.0", "2 0.0"]
    assert found["summary"]["ok"] and found["steps"] == 3 and found["failure"] is None
    assert {p["state"] for p in found["programs"]} == {"compiled"}
    assert len(found["programs"]) == found["summary"]["distinct_programs"]
    assert found["summary"]["predicted_recompilations_per_step"] == 0
    assert f"OK: {len(found['programs'])} of {len(found['programs'])} distinct programs" in said


def test_costs_are_those_of_the_product(trained):
    found = trained[2]
    product = next(p for p in found["programs"] if p["name"].startswith("aten_addmm"))
    assert product["where"] == f"train.py:{line('        loss = model')}"
    assert product["flops"] == pytest.approx(2 * 64 * 256 * 512, rel=0.05)
    least = 2 * (64 * 256 + 256 * 512 + 64 * 512)
    assert least <= product["bytes_accessed"] <= 2 * least
    assert product["roofline"] == pytest.approx(
        max(product["flops"] / 1.97e14, product["bytes_accessed"] / 8.2e11)
    )
    assert product["mfu"] == pytest.approx(product["flops"] / 1.97e14 / product["roofline"])
    assert product["launches"] == {"0": 1, "1": 1, "2": 1, "3": 1}
    weights = 4 * (256 * 512 + 512)
    assert weights < product["held"] < product["hbm"] < 10 * weights


def test_cuda_names_are_listed_with_their_lines(trained):
    found = {(r["where"], r["used"]) for r in trained[2]["replacements"]}
    helper = str(trained[0] / "helper.py")
    wanted = [
        ("from torch.cuda.amp", 'torch.amp.autocast("tpu")'),
        ("torch.backends", "nothing: it has no effect on a TPU"),
        ("assert", "torch.tpu.is_available"),
        ("assert", "'tpu'"),
        ("model =", '.to("tpu")'),
    ]
    assert found == {(f"train.py:{line(text)}", used) for text, used in wanted} | {(f"{helper}:2", "'tpu'")}


def test_the_read_in_each_step_is_named(trained):
    reads = trained[2]["reads"]
    where = f"train.py:{line('    print(step')}"
    assert [(r["where"], r["source"]) for r in reads] == [(where, "print(step, loss.item())")]
    assert [a["where"] for a in trained[2]["advice"] if a["kind"] == "sync"] == [where]


def test_the_page_needs_no_other_file(trained):
    page = (trained[0] / "out.html").read_text()
    assert not re.findall(r'(?:src|href)="|url\(|@import|<script', page)
    figures = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(figures) == 3
    memory = ElementTree.fromstring(figures[0])
    assert len(memory.findall("rect")) == len(trained[2]["programs"])
    for figure in figures:
        for node in ElementTree.fromstring(figure).iter():
            for name in ("x", "y", "width", "height", "cx", "cy"):
                assert -1 <= float(node.get(name, 0)) <= 481, (name, node.attrib)


def wrong(tmp_path, text, name="wrong.py", steps=3, **options):
    """The collected, not compiled flight of a script."""
    path = tmp_path / name
    path.write_text(text)
    flight = Flight(str(path), V5E, steps, options.get("values", "zeros"), "quick")

    def run():
        with flight.collector.counting():
            script.run(path, (), flight.report.replacements)

    flight.collect(run)
    flight.report.advice += advice.advise(flight.report, flight.collector.traced)
    return flight.report


def test_a_wrong_shape_is_told_at_the_users_line(tmp_path):
    report = wrong(tmp_path, "import torch\na = torch.ones(2, 3, device='cuda')\n\nb = a @ a\n")
    assert report.failure.where == f"{tmp_path}/wrong.py:4" and report.failure.source == "b = a @ a"
    assert "cannot be multiplied" in report.failure.message
    assert not report.ok and "NOT OK" in str(report) and "cannot be multiplied" in report.html()


def test_an_unsupported_layout_is_told(tmp_path):
    text = "import torch\nx = torch.zeros(3, device='tpu', layout=torch.sparse_coo)\n"
    report = wrong(tmp_path, text)
    assert report.failure.kind == "NotImplementedError" and report.failure.where.endswith("wrong.py:2")


@pytest.mark.filterwarnings("ignore:torchtpu. aten.*runs on the CPU")
def test_what_runs_on_the_host_is_told(tmp_path):
    text = (
        "import torch\nx = torch.ones(3, 3, device='tpu')\ntorch.ops.aten._add_relu.Tensor(x, x)\n"
        "torch.linalg.qr(x.double())\nx.nonzero()\n"
    )
    report = wrong(tmp_path, text)
    assert [(p.what, p.where[-1]) for p in report.fallbacks] == [("aten::_add_relu.Tensor", "3")]
    # the TPU's compiler has no QR of float64, and this host's has: the TPU decides
    assert [(p.what, p.where[-1]) for p in report.hosts] == [("aten::linalg_qr", "4"), ("aten::nonzero", "5")]


def test_sizes_that_vary_are_predicted_to_recompile(tmp_path):
    text = """\
import torch
w = torch.nn.Parameter(torch.ones(8, device="tpu"))
optimizer = torch.optim.SGD([w], lr=0.1)
for n in range(2, 9):
    (w[:n] * torch.ones(n, device="tpu")).sum().backward()
    optimizer.step()
"""
    report = wrong(tmp_path, text)
    assert report.steps == 3
    assert "aten_sum" in {p.name for p in report.recompilations}
    remarks = [a.message for a in report.advice if a.kind == "recompilation"]
    assert any("an input was float32[4] and is float32[5]" in m for m in remarks), remarks
    assert not {"aten_add_"} & {p.name for p in report.recompilations}


def test_ctrl_c_leaves_what_there_is(tmp_path):
    text = "import torch, os, signal\nx = torch.ones(3, device='tpu') + 1\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass\n"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    try:
        report = wrong(tmp_path, text)
    finally:
        signal.signal(signal.SIGINT, before)
    assert report.stopped == "stopped during the run" and report.failure is None
    assert report.programs and not report.ok


def test_a_script_that_never_uses_the_device_is_told(tmp_path):
    report = wrong(tmp_path, "import torch\ntorch.ones(3) + 1\n")
    assert not report.programs and [a.kind for a in report.advice] == ["device"]


def test_a_model_that_is_too_large_takes_no_memory_here():
    def step():
        model = nn.Linear(70_000, 70_000, device="tpu", bias=False)  # 19.6 GB
        return model(torch.ones(8, 70_000, device="tpu"))

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torchtpu.mode("strict"), torch.no_grad():
        report = torchtpu.preflight(step, topology=V5E, steps=1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < 1_000_000  # in kB
    assert report.too_large and not report.ok and report.failure is None
    told = next(a for a in report.advice if a.kind == "memory")
    assert "does not fit" in told.message and "Shard over at least" in told.message
    first = step.__code__.co_firstlineno
    assert told.where in (f"{__file__}:{first + 1}", f"{__file__}:{first + 2}")


def test_fused_and_compiled_steps_are_one_program_and_nothing_is_changed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    compiled = torch.compile(model, backend="tpu")
    x, before = torch.randn(8, 16, device="tpu"), [p.detach().cpu() for p in model.parameters()]
    state = torch.tpu.get_rng_state()

    def step(x, forward):
        optimizer.zero_grad()
        F.dropout(forward(x)).square().mean().backward()
        optimizer.step()

    with torchtpu.mode("fused"):
        fused = torchtpu.preflight(step, x, model, topology=V5E)
    assert fused.ok and fused.mode == "fused" and fused.steps == 3, str(fused)
    assert [p.name for p, _ in fused.step_programs] == ["fused"] and not fused.recompilations
    with torchtpu.mode("strict"):
        whole = torchtpu.preflight(step, x, compiled, topology=V5E, steps=1)
    assert whole.ok and {"forward", "backward"} <= {p.name for p in whole.programs}, str(whole)
    for p, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(p.detach().cpu(), old)
    assert torch.equal(torch.tpu.get_rng_state(), state)
    assert torch.equal((x[:1] * 0 + 2).cpu(), torch.full((1, 16), 2.0))  # programs are real again


def test_values_of_the_cpu_are_real():
    read = []
    flight = Flight("values", V5E, 1, "cpu", "quick")
    flight.collect(lambda: read.append((torch.full((3,), 2.0, device="tpu") * 3).sum().item()))
    assert read == [18.0] and flight.report.programs


def test_a_compiler_that_dies_is_one_line_of_the_report():
    class Dying(Worker):
        def target(self):
            found = super().target()
            if not self.died:
                self.died = True
                self._process.kill()
                self._process.wait()
            return found

    worker = Dying(V5E)
    worker.died = False
    closed = programs.trace(lambda x: [x + 1], [jnp.ones(3)])
    data = portable.dumps("one", closed, [jnp.ones(3)], ())
    try:
        state, said = worker.compile(data)
        assert state == "aborted" and "the compiler ended its process" in said
        assert worker.compile(data)[0] == "compiled"  # by a new process
    finally:
        worker.close()


@pytest.mark.parametrize(
    "options",
    [{"topology": "v9:2x2"}, {"topology": V5E, "values": "ones"}, {"topology": V5E, "steps": 0},
     {"topology": V5E, "effort": "some"}],
    ids=str,
)  # fmt: skip
def test_unknown_options_are_refused_before_anything_runs(options):
    with pytest.raises(ValueError, match="torchtpu: "):
        torchtpu.preflight(pytest.fail, **options)


@pytest.mark.parametrize(
    "source,found,value",
    [
        ("torch.ones(2).cuda(0, non_blocking=True).device.type", ".cuda(…)", "tpu"),
        ("torch.device(f'cuda:{3}')", "f'cuda:{3}'", torch.device("tpu")),
        ("torch.cuda.device_count()", "torch.cuda.device_count", 1),
        ("torch.cuda.get_device_capability()[0] >= 8", "torch.cuda.get_device_capability", True),
        ("'nccl'", "'nccl'", "tpu_dist"),
        ("'cuda is a word'", None, "cuda is a word"),
        ("torch.version.cuda", None, torch.version.cuda),
    ],
)
def test_expressions_for_cuda_give_those_for_tpu(source, found, value):
    code, replaced = migrate.rewritten(f"import torch\n\nx = {source}\n", "a.py")
    namespace = {}
    exec(code, namespace)
    assert namespace["x"] == value
    assert [(r.where, r.found) for r in replaced] == ([("a.py:3", found)] if found else [])


def test_imports_of_cuda_give_what_stands_for_it():
    text = "from torch import cuda as c, nn\nfrom torch.cuda import nvtx, synchronize\nnvtx.range_push('x')\nsynchronize()\n"
    code, replaced = migrate.rewritten(text, "a.py")
    namespace = {}
    exec(code, namespace)
    assert namespace["c"] is cuda and namespace["nn"] is nn
    assert [r.found for r in replaced] == ["torch.cuda", "torch.cuda.nvtx", "torch.cuda.synchronize"]
    with pytest.raises(AttributeError, match="has no counterpart on a TPU"):
        cuda.CUDAGraph  # noqa: B018
    assert [migrate.argument(a) for a in ("cuda", "--device=cuda:1", "cudax")] == [
        "tpu",
        "--device=tpu",
        "cudax",
    ]


def test_products_are_measured_against_the_matrix_unit():
    traced = programs.trace(
        lambda a, b: [jnp.einsum("bik,bkj->bij", a, b)], [jnp.ones((4, 100, 64)), jnp.ones((4, 64, 128))]
    )
    eqn = next(e for e in advice.equations(traced.jaxpr) if e.primitive.name == "dot_general")
    assert sorted(advice.dims(eqn)) == [4, 64, 100, 128] and advice.dims(eqn)[0] == 4
    assert "head dimension of 64 fills 39%" in advice._shape(advice.dims(eqn), 128)  # 100 of 128, 64 of 128


def test_float64_on_the_hot_path_is_told(tmp_path):
    text = "import torch\nx = torch.ones(64, 64, device='tpu', dtype=torch.float{})\ny = x * 2\n"
    report = wrong(tmp_path, text.format(64))
    assert [(a.kind, a.where[-1]) for a in report.advice if "float64" in a.message] == [("dtype", "2")]
    assert not [a for a in wrong(tmp_path, text.format(32)).advice if a.kind == "dtype"]


def test_the_digits_example_passes(tmp_path):
    path = Path(__file__).parents[2] / "examples" / "train_digits.py"
    for needed in ("sklearn", "rich", "matplotlib"):
        pytest.importorskip(needed)
    from torchtpu.diagnostics.preflight import preflight_script

    args = ("--model", "convnet", "--device", "cuda", "--mode", "fused", "--out", str(tmp_path / "out"))
    with torchtpu.mode("strict"):  # the script's choice ends with it
        report = preflight_script(path, args, V5E)
    assert report.ok and report.mode == "fused" and report.steps == 3, str(report)
    assert len(report.step_programs) == 1 and not report.recompilations
