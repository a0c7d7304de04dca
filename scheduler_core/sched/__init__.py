"""The one planner of an instance: policies answer narrow questions, the planner owns budgets, blocks and states.

A request goes ``submit`` -> waiting queue -> ``plan`` (admitted, granted tokens step by step, maybe preempted back to
the queue) -> ``complete`` (tokens confirmed, finished, blocks released). `instance.Instance` is the facade.
"""
