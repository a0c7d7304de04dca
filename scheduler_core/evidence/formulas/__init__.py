"""The figures of a run by the formulas of other load tools, beside ours."""
