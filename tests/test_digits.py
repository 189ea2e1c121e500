"""The digits example: the same losses as on the CPU, and a checkpoint that continues exactly."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

for needed in ("sklearn", "rich", "matplotlib"):
    pytest.importorskip(needed)

MODELS = ("convnet", "vit")
STEPS = 100


@pytest.fixture(scope="module")
def digits() -> ModuleType:
    import torchtpu  # noqa: F401  # the device's name

    path = Path(__file__).parents[1] / "examples" / "train_digits.py"
    spec = importlib.util.spec_from_file_location("train_digits", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_losses_agree_with_the_cpu(digits: ModuleType, model: str) -> None:
    expected = torch.tensor(digits.loss_curve(model, "cpu", STEPS))
    actual = torch.tensor(digits.loss_curve(model, "tpu", STEPS))
    assert len(actual) == STEPS
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-3)
    assert expected[-10:].mean() < 0.1 * expected[0]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_resume_continues_with_the_same_losses(digits: ModuleType, model: str, tmp_path: Path) -> None:
    settings = {"epochs": 2, "augment": "shift"}
    first = digits.build(model, "tpu", **settings)
    first.history["loss"] = [loss.item() for loss in digits.train_epoch(first)]
    digits.save(first, tmp_path / "model.pt")
    expected = [loss.item() for loss in digits.train_epoch(first)]

    second = digits.build(model, "tpu", **settings)
    with torch.no_grad():
        for parameter in second.model.parameters():
            parameter.fill_(0.5)
    second.generator.manual_seed(1)
    digits.load(second, tmp_path / "model.pt")
    assert second.history == first.history
    assert {parameter.device.type for parameter in second.model.parameters()} == {"tpu"}
    actual = [loss.item() for loss in digits.train_epoch(second)]
    assert actual == pytest.approx(expected, rel=1e-6)


def test_a_checkpoint_of_other_settings_is_refused(digits: ModuleType, tmp_path: Path) -> None:
    digits.save(digits.build("convnet", "cpu", epochs=2), tmp_path / "model.pt")
    with pytest.raises(ValueError, match="was trained with"):
        digits.load(digits.build("convnet", "cpu", epochs=3), tmp_path / "model.pt")
