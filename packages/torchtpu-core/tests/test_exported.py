"""A file of torchtpu.export without other packages: a pack's operator, state, overwritten buffers, what is not there."""

import subprocess
import sys

import pytest
import torch

import torchtpu.export
from torchtpu.plugins import registry
from torchtpu.testing import toy

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


class Keeps(torch.nn.Module):
    """Remembers what it was given before."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x):
        before = self.last.clone()
        self.last.copy_(x)
        return {"now": toy.softsign(x), "before": before.reshape(1, 3)}


@pytest.fixture
def toys():
    with registry.use({"toy": toy.pack}):
        yield


def test_a_packs_operator_and_a_buffer(toys, tmp_path):
    torchtpu.export.save(Keeps(), tmp_path / "keeps", (torch.zeros(3),))
    loaded = torchtpu.export.load(tmp_path / "keeps")
    first, second = torch.randn(3), torch.randn(3)
    loaded(first)
    got = loaded(second)
    torch.testing.assert_close(got["now"].cpu(), torch.nn.functional.softsign(second))
    torch.testing.assert_close(got["before"].cpu(), first[None])
    torch.testing.assert_close(loaded.last.cpu(), second)


def test_explain_tells_a_program_by_its_models_name(toys, tmp_path):
    torchtpu.export.save(Keeps(), tmp_path / "keeps", (torch.zeros(3),))
    with torchtpu.mode("strict"), torchtpu.explain() as report:
        torchtpu.export.load(tmp_path / "keeps")(torch.zeros(3))
    assert [made.name for made in report.compilations] == ["Keeps"]


def test_an_operator_without_a_lowering_is_named(toys, tmp_path):
    class Sines(torch.nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x)

    with pytest.raises(torchtpu.export.ExportError, match=r"(?s)bessel_j0.* no lowering.*in forward"):
        torchtpu.export.save(Sines(), tmp_path / "sines", (torch.zeros(3),))


def test_naming_it_imports_no_jax():
    code = "import sys, torch, torchtpu; torchtpu.export.Info; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
