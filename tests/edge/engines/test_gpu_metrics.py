"""Pages of exporters as they are, and what is no use of them."""

from __future__ import annotations

import pytest

from pointsman.edge.engines.gpu_metrics import gpu_use
from pointsman.edge.engines.http import EngineCallError

DCGM = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-AA-1",device="nvidia0",modelName="NVIDIA H100",Hostname="h",pod=""} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-bb-2",device="nvidia1",modelName="NVIDIA H100",Hostname="h",pod=""} 10
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-AA-1"} 60
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-AA-1"} 0.123
"""
INSTANCES = """\
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-a",GPU_I_PROFILE="3g.40gb",GPU_I_ID="1"} 0.9
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-a",GPU_I_PROFILE="3g.40gb",GPU_I_ID="2"} 0.3
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="1",UUID="GPU-b"} 0.0
"""
SMI = """\
nvidia_smi_index{uuid="cc-3"} 0
nvidia_smi_index{uuid="dd-4"} 1
nvidia_smi_utilization_gpu_ratio{uuid="cc-3"} 0.4
nvidia_smi_utilization_gpu_ratio{uuid="dd-4"} 0.8
"""


@pytest.mark.parametrize(
    ("text", "gpus", "use"),
    [
        (DCGM, None, 0.5),
        (DCGM, ["0"], 0.9),
        (DCGM, ["GPU-BB-2"], 0.1),
        (DCGM, ["1", "GPU-aa-1"], 0.5),
        (INSTANCES, ["0"], 0.6),
        (INSTANCES, None, 0.3),
        (SMI, None, 0.6),
        (SMI, ["1"], 0.8),
        (SMI, ["GPU-cc-3"], 0.4),
        ("DCGM_FI_DEV_GPU_UTIL 130\n", None, 1.0),
        ('DCGM_FI_DEV_GPU_UTIL{gpu="0"} NaN\nDCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0"} 0.7\n', None, 0.7),
    ],
)
def test_the_mean_of_the_gpus_that_count(text, gpus, use) -> None:
    assert gpu_use(text, gpus) == pytest.approx(use)


@pytest.mark.parametrize(
    ("text", "gpus", "words"),
    [
        ("", None, "no usable DCGM_FI_DEV_GPU_UTIL"),
        ("<html></html>", None, "no usable"),
        ("DCGM_FI_DEV_GPU_UTIL -1\n", None, "no usable"),
        ("DCGM_FI_DEV_GPU_UTIL{gpu=0} what\n", None, "not Prometheus text"),
        (DCGM, ["0", "7"], "tells nothing of GPU 7; it tells of 0, 1, aa-1, bb-2"),
    ],
)
def test_pages_that_do_not_tell(text, gpus, words) -> None:
    with pytest.raises(EngineCallError, match=words):
        gpu_use(text, gpus)
