"""Values shared by every layer: plain frozen data, no behaviour that could take a side.

Import from the modules (``from scheduler_core.types.plan import StepPlan``); this package re-exports nothing, so an
import line always says which vocabulary it uses.
"""
