"""``torch.tpu.distributed``."""

from torchtpu_dist.launch import set_tpu_launch_env
from torchtpu_dist.layout import topology_aware_mesh

__all__ = ["set_tpu_launch_env", "topology_aware_mesh"]
