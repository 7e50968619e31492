"""The CPU executor's core: model steps, sampling and log-probabilities in C++. Source: services/engine/native."""

from postroad_native._native import Model, RowEdit, logprobs, sample, supported_isas

__all__ = ["Model", "RowEdit", "logprobs", "sample", "supported_isas"]
