"""When recorded work runs: each mode is one executor."""

from __future__ import annotations


def install() -> None:
    """Hand the modes to dispatch; once, at the device's first use."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from torchtpu import config
    from torchtpu.dispatch import executor
    from torchtpu.modes import debug, fused, fused_front, strict
    from torchtpu.runtime import program

    config.default_mode()  # an unknown TORCHTPU_MODE fails here
    executor.runs.update(strict=strict.run, debug=strict.run, fused=fused.run)
    executor.fronts["fused"] = fused_front.make
    executor.checks["debug"] = debug
    config.on_leaving_fused.append(lambda: fused.graph.flush("the mode changed"))
    register_optimizer_step_post_hook(fused.graph.boundary)
    program.forget.append(fused.graph.forget)
