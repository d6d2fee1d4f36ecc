"""Fewer GPUs are wasted than by the best published policy, on the published orders of arrival (G9). The whole table is
`python -m benchmarks openb`'s; here two of its nine workloads."""

from statistics import fmean

import pytest

from benchmarks.openb import PUBLISHED, gpu_nodes, orders, replay, shapes_of


@pytest.mark.parametrize("workload", ["default", "gpuspec33"])
def test_least_fragmentation_fills_more_than_fgd(workload: str) -> None:
    nodes, devices = gpu_nodes()
    shapes = shapes_of(workload)
    runs = [replay(shapes, order, "least-fragmentation", nodes, devices) for _, order in orders(workload)]
    _, _, (fgd_at_130, fgd_at_100) = PUBLISHED[workload]
    assert len(runs) == 5
    assert fmean(one.at_130 for one in runs) > fgd_at_130
    assert fmean(one.at_100 for one in runs) > fgd_at_100
