"""Queues, batch policy, page accounting and prefix cache. Pure Python: what it decides leaves it as a StepPlan."""
