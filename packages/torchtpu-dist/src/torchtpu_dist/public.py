"""``torch.tpu.distributed``."""

from torchtpu_dist.launch import set_tpu_launch_env

__all__ = ["set_tpu_launch_env"]
