"""Postroad's stations, one package each."""

__version__ = "0.1.0"  # not read from the distribution: images hold the code without one
