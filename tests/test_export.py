"""torchtpu.export: a program as a file that gives the CPU's results without the model's source, and says what is wrong."""

import copy
import json
import struct
import subprocess
import sys
import zipfile
from functools import cache
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import nn
from torch.export import Dim

import torchtpu
from torchtpu.cli import main
from torchtpu.export import ExportError, container, info, load, save

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:The tensor attributes")


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x):
        return self.head(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).mean((2, 3)))


class Gpt(nn.Module):
    """A causal block whose head is tied to its embedding."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 16), nn.Embedding(6, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        q, k, v = self.qkv(self.norm(x)).view(*ids.shape, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(*x.shape))
        return self.head(x + self.mlp(x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class Tree(nn.Module):
    """Nested arguments, by position and by name; nested results with a view, a number and nothing."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.randn(3), persistent=False)

    def forward(self, pair, batch, *, scale=2.0):
        x, y = pair
        total = (x + batch["left"]) * scale + self.shift
        wide = x.double().sum(0) / 3
        return {"t": total.t(), "both": (y.to(torch.int64).cumsum(0), [None, 3]), "wide": wide}


class Parts(nn.Module):
    """What torch.export keeps in other ways than operators: a constant, autocast, a branch, a check of data, effects."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            low = self.linear(x)
        either = torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: self.linear(a), (x,))
        big = F.interpolate(x[None, None], scale_factor=2, mode="bilinear")
        return low, either + torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.linalg.inv(x + 4 * torch.eye(4)), big


class Cache(nn.Module):
    """Writes into a buffer at a place that is data, and into an argument."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(5, 3))

    def forward(self, x, at, log):
        self.kept.index_copy_(0, at, x[None])
        log.add_(x.sum())
        return self.kept.sum(0)


class Case(NamedTuple):
    model: nn.Module
    args: tuple
    kwargs: dict | None = None
    tolerance: float = 1e-5


def cases():
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 5))
    tree = ((torch.randn(2, 3), torch.arange(4, dtype=torch.int32)), {"left": torch.randn(2, 3)})
    return {
        "mlp": Case(mlp, (torch.randn(4, 7),)),
        "conv": Case(Conv().eval(), (torch.randn(2, 3, 8, 8),)),
        "conv-train": Case(Conv().train(), (torch.randn(2, 3, 8, 8),)),
        "gpt": Case(Gpt(), (torch.randint(0, 11, (2, 6)),)),
        "lstm": Case(Recurrent(), (torch.randn(3, 5, 4),)),
        "bf16": Case(copy.deepcopy(mlp).bfloat16(), (torch.randn(4, 7).bfloat16(),), None, 2e-2),
        "double": Case(copy.deepcopy(mlp).double(), (torch.randn(4, 7).double(),), None, 1e-12),
        "parts": Case(Parts(), (torch.rand(4, 4),), None, 2e-2),
        "tree": Case(Tree(), tree, {"scale": 0.5}),
    }


CASES = list(cases())


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The file of a case, made at its first use; beside it are its arguments and the CPU's results and buffers."""
    folder, known = tmp_path_factory.mktemp("programs"), cases()

    @cache
    def made(name):
        case = known[name]
        kwargs = case.kwargs or {}
        save(case.model, folder / name, case.args, kwargs)
        with torch.no_grad():
            wants = [case.model(*case.args, **kwargs) for _ in range(2)]
        facts = case.args, kwargs, wants, dict(case.model.named_buffers()), case.tolerance
        torch.save(facts, folder / f"{name}.pt")
        return folder / name

    return made


def facts(path):
    return torch.load(f"{path}.pt")


def close(got, want, tolerance=1e-5):
    torch.testing.assert_close(got.cpu(), want.detach(), atol=tolerance, rtol=tolerance)


def same_tree(got, want, tolerance=1e-5):
    torch.testing.assert_close(
        torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), got),
        want,
        atol=tolerance,
        rtol=tolerance,
    )


def on_tpu(tree):
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("tpu"), tree)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_cpu(program, name):
    args, kwargs, wants, buffers, tolerance = facts(program(name))
    loaded = load(program(name))
    same_tree(loaded(*on_tpu(args), **kwargs), wants[0], tolerance)
    second = loaded(*args, **kwargs)  # of the CPU, and after the buffers were written once
    leaves = torch.utils._pytree.tree_leaves(second)
    assert all(leaf.device.type == "tpu" for leaf in leaves if isinstance(leaf, torch.Tensor))
    same_tree(second, wants[1], tolerance)
    assert {n for n, _ in loaded.named_buffers()} == set(buffers)
    for key, buffer in loaded.named_buffers():
        close(buffer, buffers[key], tolerance)


ALONE = """
import sys, pathlib, torch
import torchtpu.export
assert "jax" not in sys.modules
for file in sorted(pathlib.Path(".").glob("*.pt")):
    args, kwargs, wants, buffers, tolerance = torch.load(file)
    got = torchtpu.export.load(file.stem)(*args, **kwargs)
    got = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), got)
    torch.testing.assert_close(got, wants[0], atol=tolerance, rtol=tolerance)
    print(file.stem)
"""


def test_a_process_without_the_source_runs_every_program(program):
    folder = {program(name).parent for name in CASES}.pop()
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=folder, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(done.stdout.split()) == set(CASES)


def test_tensors_are_stored_once_and_not_in_the_program(tmp_path):
    made = save(Gpt(), tmp_path / "gpt", (torch.zeros(1, 4, dtype=torch.int64),))
    assert ("tokens.weight", "head.weight") in [state.names for state in made.state]
    loaded = load(tmp_path / "gpt")
    assert loaded.head.weight is loaded.tokens.weight
    large = nn.Linear(512, 512)
    made = save(large, tmp_path / "large", (torch.zeros(1, 512),))
    assert made.nbytes == 4 * 512 * 513
    assert (tmp_path / "large").stat().st_size < made.nbytes + 50_000


def test_other_parameters_can_be_loaded(program):
    args, *_ = facts(program("conv"))
    loaded, other = load(program("conv")), Conv().eval()
    assert list(loaded.state_dict()) == sorted(other.state_dict(), key=list(loaded.state_dict()).index)
    loaded.load_state_dict(other.state_dict())
    close(loaded(*args), other(*args))
    loaded.half()
    with pytest.raises(
        TypeError, match=r"parameter conv.weight is float16\[4, 3, 3, 3\], the program takes float32"
    ):
        loaded(*args)


def test_an_exported_program_stays_as_it_is(tmp_path):
    model = Conv().train()
    x = torch.randn(2, 3, 8, 8)
    program = torch.export.export(model, (x,))
    before = str(program)
    save(program, tmp_path / "program")
    assert str(program) == before and not any(model.norm.running_mean)
    assert all(value.device.type == "cpu" for value in program.state_dict.values())
    loaded = load(tmp_path / "program")
    close(loaded(x), model(x))
    close(loaded.norm.running_var, model.norm.running_var)


def test_buffers_and_arguments_are_overwritten(tmp_path):
    model, x = Cache(), torch.randn(3)
    save(model, tmp_path / "cache", (x, torch.tensor([0]), torch.zeros(())))
    loaded = load(tmp_path / "cache")
    logs = [torch.zeros(()), torch.zeros(()), torch.zeros((), device="tpu")]
    for at in (1, 4):
        close(loaded(x, torch.tensor([at]), logs[2]), model(x, torch.tensor([at]), logs[0]))
        loaded(x, torch.tensor([at]), logs[1])
    close(loaded.kept, model.kept)
    close(logs[2], logs[0])
    close(logs[1], logs[0])


def test_strided_arguments_are_read_as_they_are(program):
    _, _, _, _, tolerance = facts(program("mlp"))
    loaded, model = load(program("mlp")), cases()["mlp"].model
    x = torch.randn(9, 8)
    given = x.to("tpu").t()[1:5, 2:]
    close(loaded(given), model(x.t()[1:5, 2:]), tolerance)


def test_random_operators_draw_what_eager_mode_draws(tmp_path):
    model = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.2)).train()
    x = torch.randn(5, 6)
    assert save(model, tmp_path / "dropout", (x,)).draws == 2
    loaded, eager = load(tmp_path / "dropout"), copy.deepcopy(model).to("tpu")
    torch.manual_seed(7)
    wants = [eager(x.to("tpu")).cpu() for _ in range(2)]
    after = torch.tpu.get_rng_state()
    torch.manual_seed(7)
    gots = [loaded(x) for _ in range(2)]
    assert torch.equal(torch.tpu.get_rng_state(), after)
    for got, want in zip(gots, wants, strict=True):
        close(got, want)
    assert not torch.equal(wants[0], wants[1])


def test_dynamic_dimensions(tmp_path):
    model, batch = Recurrent().eval(), Dim("batch", min=2, max=8)
    made = save(model, tmp_path / "any", (torch.randn(3, 5, 4),), dynamic_shapes={"x": {0: batch}})
    assert list(made.dimensions.values()) == [(2, 8)]
    loaded = load(tmp_path / "any")
    for count in (2, 7):
        x = torch.randn(count, 5, 4)
        close(loaded(x), model(x))
    with pytest.raises(ValueError, match=r"argument x: float32\[.*\]: .* is 9, the program takes 2 to 8"):
        loaded(torch.randn(9, 5, 4))


def test_a_sequence_of_any_length(tmp_path):
    model, sizes = Gpt(), {0: Dim("batch", max=4), 1: Dim("length", min=2, max=6)}
    save(model, tmp_path / "gpt", (torch.zeros(2, 4, dtype=torch.int64),), dynamic_shapes={"ids": sizes})
    loaded = load(tmp_path / "gpt")
    for shape in ((1, 6), (3, 2)):
        ids = torch.randint(0, 11, shape)
        close(loaded(ids), model(ids))


class Windows(nn.Module):
    def forward(self, x):
        return x.unfold(0, 2, 1).sum(1)


def test_dynamic_dimensions_that_are_not_supported_are_told(tmp_path):
    n = Dim("n", min=3, max=50)
    with pytest.raises(
        ExportError, match=r"(?s)unfold.* with a dynamic dimension is not supported yet.*in forward"
    ):
        save(Windows(), tmp_path / "x", (torch.ones(6),), dynamic_shapes={"x": {0: n}})


def test_a_size_may_follow_from_another(tmp_path):
    n = Dim("n", min=3, max=50)
    sizes = {"x": {0: n}, "y": {0: 2 * n + 1}}
    save(Both(), tmp_path / "both", (torch.ones(3), torch.ones(7)), dynamic_shapes=sizes)
    loaded = load(tmp_path / "both")
    for count in (4, 9):
        assert loaded(torch.ones(count), torch.ones(2 * count + 1)).item() == 3 * count + 1
    with pytest.raises(ValueError, match=r"torchtpu: .* y.shape\[0\] \(= 8\) .* \(= 9\)"):
        loaded(torch.ones(4), torch.ones(8))


class Both(nn.Module):
    def forward(self, x, y):
        return x.sum() + y.sum()


class Two(nn.Module):
    def forward(self, x, y):
        return x + y


def test_dimensions_of_one_name_must_agree(tmp_path):
    n = Dim("n")
    save(Two(), tmp_path / "two", (torch.ones(3), torch.ones(3)), dynamic_shapes={"x": {0: n}, "y": {0: n}})
    with pytest.raises(ValueError, match=r"argument y.* is 5 here and 4 before"):
        load(tmp_path / "two")(torch.ones(4), torch.ones(5))


X, Y = torch.zeros(2, 3), torch.zeros(4, dtype=torch.int32)
LEFT = {"left": X}
WRONG = {
    "missing": (((X, Y),), {}, TypeError, "missing argument batch, scale"),
    "too many": (((X, Y), LEFT, 0.5, 1), {}, TypeError, "4 arguments, the program takes 3: pair, batch, scale"),
    "unknown": (((X, Y), LEFT), {"speed": 1}, TypeError, "unknown argument speed"),
    "twice": (((X, Y), LEFT), {"pair": X}, TypeError, "argument pair is given twice"),
    "structure": (((X, Y), {"right": X}), {"scale": 0.5}, TypeError, "argument batch is "),
    "value": (((X, Y), LEFT), {"scale": 1.5}, ValueError, "argument scale was exported as 0.5 and is fixed, not 1.5"),
    "dtype": (((X, X), LEFT), {"scale": 0.5}, TypeError, r"argument pair\[1\]: int32\[4\] does not take float32"),
    "shape": (((X, Y), {"left": X.t()}), {"scale": 0.5}, ValueError,
              r"argument batch\['left'\]: float32\[2, 3\] does not take shape \[3, 2\]"),
    "rank": (((X[0], Y), LEFT), {"scale": 0.5}, ValueError, r"argument pair\[0\].* does not take shape \[3\]"),
    "kind": (((X, 3), LEFT), {"scale": 0.5}, TypeError, r"argument pair\[1\].* is a tensor, not int"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_argument_is_named(program, wrong):
    args, kwargs, kind, words = WRONG[wrong]
    with pytest.raises(kind, match=words):
        load(program("tree"))(*args, **kwargs)


def test_arguments_may_be_given_by_name(program):
    args, kwargs, wants, *_ = facts(program("tree"))
    same_tree(load(program("tree"))(batch=args[1], pair=args[0], **kwargs), wants[0])


def test_what_a_loaded_program_does_not_do(program):
    loaded = load(program("mlp"))
    with pytest.raises(RuntimeError, match="has no gradient"):
        loaded(torch.randn(4, 7, requires_grad=True))
    for change in (loaded.train, loaded.eval):
        with pytest.raises(NotImplementedError, match="change nothing"):
            change()


class Shapes(nn.Module):
    def forward(self, x):
        return x.nonzero().sum()


class Print(nn.Module):
    def forward(self, x):
        torch._higher_order_ops.print("{}", x)
        return x + 1


class Pair(NamedTuple):
    a: torch.Tensor


class Named(nn.Module):
    def forward(self, x):
        return Pair(x + 1)


def test_what_cannot_be_exported_is_named_with_its_line(tmp_path):
    with pytest.raises(ExportError, match=r"(?s)nonzero.*no lowering.*test_export.py.*in forward"):
        save(Shapes(), tmp_path / "x", (torch.ones(3),))
    with pytest.raises(ExportError, match="print has an effect"):
        save(Print(), tmp_path / "x", (X,))
    with pytest.raises(ExportError, match="of a class that a file cannot name.*Pair"):
        save(Named(), tmp_path / "x", (X,))
    with pytest.raises(TypeError, match="a module or an ExportedProgram, not function"):
        save(lambda x: x, tmp_path / "x", (torch.ones(3),))
    with pytest.raises(ValueError, match="needs example args"):
        save(Two(), tmp_path / "x")
    with pytest.raises(ValueError, match="platforms must be some of"):
        save(Two(), tmp_path / "x", (X, X), platforms=("cpu", "npu"))
    with pytest.raises(ValueError, match="give args, kwargs and dynamic_shapes for modules"):
        save(torch.export.export(Two(), (X, X)), tmp_path / "x", (X, X))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def whole(tmp_path):
    save(Two(), tmp_path / "whole", (X, X))
    return tmp_path / "whole"


def changed(path, entry, change):
    """A copy of the zip whose ``entry`` went through ``change``."""
    copied = path.with_suffix(".changed")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(copied, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, change(data) if name == entry else data)
    return copied


def test_a_file_that_is_no_program_is_told(whole, tmp_path):
    data = whole.read_bytes()
    (tmp_path / "short").write_bytes(data[: len(data) // 2])
    with pytest.raises(ExportError, match="short is not a whole file"):
        load(tmp_path / "short")
    torch.save(X, tmp_path / "tensor")
    with pytest.raises(ExportError, match=r"tensor is not a file of torchtpu\.export"):
        load(tmp_path / "tensor")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent")


def test_a_changed_byte_is_found(program, tmp_path):
    data = bytearray((program("mlp")).read_bytes())
    with zipfile.ZipFile(program("mlp")) as file:
        entries = {e.filename: (e.header_offset, e.compress_size // 2) for e in file.infolist()}
    # a local header has 30 bytes, the last four of which tell how long the name and the extra field after it are
    places = {
        n: at + 30 + sum(struct.unpack_from("<HH", data, at + 26)) + half for n, (at, half) in entries.items()
    }
    assert {"description.json", "program/cpu", "program/tpu", "state/0"} <= set(places)
    for name, place in places.items():
        bad = bytearray(data)
        bad[place] ^= 4
        (tmp_path / "bad").write_bytes(bad)
        with pytest.raises(ExportError, match="bad is damaged"):
            container.program(tmp_path / "bad", "tpu") if name == "program/tpu" else load(tmp_path / "bad")
            raise AssertionError(name)


def test_another_format_and_another_platform_are_told(whole, tmp_path):
    def newer(data):
        return json.dumps({**json.loads(data), "version": 2})

    def elsewhere(data):
        return json.dumps({**json.loads(data), "platforms": ["tpu"]})

    with pytest.raises(ExportError, match=r"has format 2, this torchtpu reads format 1; .*'torch'"):
        load(changed(whole, container.DESCRIPTION, newer))
    with pytest.raises(ExportError, match="was exported for tpu, not for cpu"):
        load(changed(whole, container.DESCRIPTION, elsewhere))
    with pytest.raises(ExportError, match="JAX cannot read the program"):
        load(changed(whole, container.PROGRAM.format("cpu"), lambda data: b"\0" * len(data)))


def test_the_command_shows_a_file(program):
    told = CliRunner().invoke(main, ["export", "show", str(program("conv-train"))]).output
    for words in (
        "x: float32[2, 3, 8, 8]",
        "float32[2, 5]",
        "norm.running_mean",
        f"torch {torch.__version__}",
    ):
        assert words in told
    failed = CliRunner().invoke(main, ["export", "show", __file__])
    assert failed.exit_code == 1 and "not a whole file" in failed.output


def test_importing_it_starts_nothing(program):
    code = "import sys, torch, torchtpu; torchtpu.export.info(sys.argv[1]); assert 'jax' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code, str(program("mlp"))], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert info(program("mlp")).platforms == ("cpu", "tpu")
    assert "export" not in torchtpu.__all__


class Forgetful(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


def test_attention_that_forgets_draws_the_numbers_of_eager_mode(tmp_path):
    x = torch.randn(2, 2, 5, 8)
    save(Forgetful(), tmp_path / "x", (x,))
    torch.tpu.manual_seed(5)
    want = Forgetful()(x.to("tpu"))
    torch.tpu.manual_seed(5)
    torch.testing.assert_close(load(tmp_path / "x")(x.to("tpu")).cpu(), want.cpu())
