"""Exported programs through the TPU's own compiler, with no TPU."""

import json

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import nn

import torchtpu.export
from torchtpu.cli import main
from torchtpu.export import ahead, graph, lowering, signature
from torchtpu.plugins import registry
from torchtpu.runtime import topology
from torchtpu.testing import toy

pytest.importorskip("libtpu")
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
V5E = "v5e:2x2"


class Softsign(nn.Module):
    def forward(self, x):
        return toy.softsign(x)


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    """Two products of matrices and a running mean, compiled for v5e when saved."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("aot") / "mlp"
    model = nn.Sequential(nn.Linear(128, 256), nn.BatchNorm1d(256), nn.GELU(), nn.Linear(256, 128))
    torchtpu.export.save(model, path, (torch.randn(64, 128),), topology=V5E)
    return path


def test_the_compiler_counts_the_products(products):
    noted = torchtpu.export.info(products).compiled[V5E]
    found = torchtpu.export.compile(products, V5E)
    assert {name: getattr(found, name) for name in noted} == noted
    least = 2 * 64 * 128 * 256 * 2  # each product multiplies and adds
    assert least <= found.flops < 2 * least
    weights = 4 * (2 * 128 * 256)
    assert found.arguments >= weights and found.peak >= found.arguments and found.fits
    assert found.bytes_accessed >= weights
    assert found.topology.generation == "v5e" and "HloModule" in found.hlo
    assert json.dumps(noted)


def test_it_still_runs_here(products):
    x = torch.randn(64, 128)
    loaded = torchtpu.export.load(products)
    hidden = F.linear(x, loaded.get_parameter("0.weight").cpu(), loaded.get_parameter("0.bias").cpu())
    loaded(x)
    torch.testing.assert_close(
        loaded.get_buffer("1.running_mean").cpu(), 0.1 * hidden.mean(0), atol=1e-5, rtol=1e-4
    )


def test_a_file_has_a_tpus_kernel_and_the_lowering_for_the_cpu(tmp_path):
    x = torch.randn(32, 128)
    with registry.use({"toy": toy.pack}):
        torchtpu.export.save(Softsign(), tmp_path / "softsign", (x,), topology=V5E)
    got = torchtpu.export.load(tmp_path / "softsign")(x)
    torch.testing.assert_close(got.cpu(), F.softsign(x))
    assert "tpu_custom_call" in torchtpu.export.compile(tmp_path / "softsign", V5E).hlo


class Spectrum(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x).real


def test_what_a_tpu_leaves_to_its_host_is_refused(tmp_path):
    with pytest.raises(torchtpu.export.ExportError, match="run on the host of a TPU"):
        torchtpu.export.save(Spectrum(), tmp_path / "x", (torch.ones(4, dtype=torch.float64),))
    torchtpu.export.save(
        Spectrum(), tmp_path / "x", (torch.ones(4, dtype=torch.float64),), platforms=("cpu",)
    )
    with pytest.raises(torchtpu.export.ExportError, match="was exported for cpu, not for tpu"):
        torchtpu.export.compile(tmp_path / "x", V5E)


def test_errors_of_the_topology(products, tmp_path):
    with pytest.raises(ValueError, match="unknown TPU topology"):
        torchtpu.export.compile(products, "v9:2x2")
    with pytest.raises(ValueError, match="needs 'tpu' among the platforms"):
        torchtpu.export.save(Spectrum(), tmp_path / "x", (torch.eye(2),), platforms="cpu", topology=V5E)
    rows = {"x": {0: torch.export.Dim("rows")}}
    torchtpu.export.save(
        nn.ReLU(), tmp_path / "any", (torch.ones(3, 2),), dynamic_shapes={"input": rows["x"]}
    )
    with pytest.raises(torchtpu.export.ExportError, match="cannot be compiled without their sizes"):
        torchtpu.export.compile(tmp_path / "any", V5E)


def test_a_program_that_is_too_large_does_not_fit(tmp_path):
    with torch.device("meta"):
        large = nn.Linear(70_000, 70_000, bias=False)
    program = torch.export.export(large, (torch.empty(1, 70_000, device="meta"),))
    lowered = graph.lowerable(program)
    wanted = signature.plan(program, lowered).wanted
    closed, _ = lowering.trace(lowered, wanted, ("tpu",), "v5e")
    data = lowering.serialize("large", closed, "tpu")
    with pytest.raises(topology.CompileError, match="RESOURCE_EXHAUSTED|memory"):
        ahead.compiled(data, V5E, ())


def test_the_command_shows_and_compiles(products, monkeypatch):
    monkeypatch.setenv("TORCHTPU_PLATFORM", "cpu")  # the command sets it
    shown = CliRunner().invoke(main, ["export", "show", str(products)]).output
    assert f"on {V5E}: " in shown and "flops" in shown
    done = CliRunner().invoke(main, ["export", "compile", str(products), "--topology", "v6e:2x4"])
    assert "on v6e:2x4: " in done.output and done.exit_code == 0
    failed = CliRunner().invoke(main, ["export", "compile", str(products), "--topology", "v9:2x2"])
    assert "unknown TPU topology" in failed.output and failed.exit_code == 1
