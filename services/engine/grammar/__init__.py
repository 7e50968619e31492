"""Structured output: the forms that a request may ask for, their compilation, and which tokens they allow next."""
