"""How full the memory of GPUs is, by pages of exporters as they are."""

from __future__ import annotations

import pytest

from pointsman.edge.engines.gpu_memory import gpu_memory
from pointsman.edge.engines.http import EngineCallError

DCGM = """\
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-AA-1"} 60000
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-AA-1"} 19000
DCGM_FI_DEV_FB_RESERVED{gpu="0",UUID="GPU-AA-1"} 1000
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-bb-2"} 20000
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-bb-2"} 20000
"""
INSTANCES = """\
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",GPU_I_ID="1"} 10
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",GPU_I_ID="2"} 20
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a",GPU_I_ID="1"} 30
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a",GPU_I_ID="2"} 40
"""
SMI = """\
nvidia_smi_index{uuid="cc-3"} 0
nvidia_smi_index{uuid="dd-4"} 1
nvidia_smi_memory_used_bytes{uuid="cc-3"} 1e+09
nvidia_smi_memory_used_bytes{uuid="dd-4"} 3e+09
nvidia_smi_memory_total_bytes{uuid="cc-3"} 4e+09
nvidia_smi_memory_total_bytes{uuid="dd-4"} 4e+09
"""


@pytest.mark.parametrize(
    ("text", "gpus", "share"),
    [
        (DCGM, None, 80 / 120),
        (DCGM, ["0"], 0.75),
        (DCGM, ["GPU-BB-2"], 0.5),
        (INSTANCES, ["0"], 0.3),
        (SMI, None, 0.5),
        (SMI, ["1"], 0.75),
        (SMI, ["GPU-cc-3"], 0.25),
        ("", None, None),
        ('DCGM_FI_DEV_FB_USED{gpu="0"} 5\n', None, None),
        ('DCGM_FI_DEV_FB_USED{gpu="0"} NaN\nDCGM_FI_DEV_FB_FREE{gpu="0"} 5\n', None, None),
        ('DCGM_FI_DEV_FB_USED{gpu="0"} 0\nDCGM_FI_DEV_FB_FREE{gpu="0"} 0\n', None, None),
        (DCGM, ["0", "7"], None),
    ],
)
def test_the_share_in_use(text: str, gpus: list[str] | None, share: float | None) -> None:
    assert gpu_memory(text, gpus) == (None if share is None else pytest.approx(share))


def test_what_is_no_page_of_metrics() -> None:
    with pytest.raises(EngineCallError, match="not Prometheus text"):
        gpu_memory("DCGM_FI_DEV_FB_USED{gpu=0} what\n")
