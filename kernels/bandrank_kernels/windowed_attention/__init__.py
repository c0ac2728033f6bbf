"""Asymmetric windowed attention over packed rows (Schlatt et al. 2024); the maths is in README.md."""

from bandrank_kernels.windowed_attention.capacity import Capacity, bucket_rows, power_of_two, row_bucket, row_buckets
from bandrank_kernels.windowed_attention.interface import (
    flash_runs,
    plan_attention,
    why_no_kernels,
    why_not_one_launch,
    windowed_attention,
)
from bandrank_kernels.windowed_attention.layout import Layout, Layouts, lay_out
from bandrank_kernels.windowed_attention.local import plan_local_attention
from bandrank_kernels.windowed_attention.native import DistanceBiases, NativePlan, why_not_native
from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.plan import AttentionPlan
from bandrank_kernels.windowed_attention.rows import PackedRows
from bandrank_kernels.windowed_attention.varlen import JoinedPlan, TextsPlan

__all__ = [
    "AttentionPattern",
    "AttentionPlan",
    "Capacity",
    "DistanceBiases",
    "JoinedPlan",
    "Layout",
    "Layouts",
    "NativePlan",
    "PackedRows",
    "TextsPlan",
    "bucket_rows",
    "flash_runs",
    "lay_out",
    "plan_attention",
    "plan_local_attention",
    "power_of_two",
    "row_bucket",
    "row_buckets",
    "why_no_kernels",
    "why_not_native",
    "why_not_one_launch",
    "windowed_attention",
]
