"""The CPU executor's core: whole model steps, and sampling, in C++. See services/engine/native in Postroad's tree."""

from postroad_native._native import Model, RowEdit, sample, supported_isas

__all__ = ["Model", "RowEdit", "sample", "supported_isas"]
