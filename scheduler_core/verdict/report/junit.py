"""JUnit XML: one suite per comparison, one case per gate, so that any CI shows a verdict."""

from xml.etree import ElementTree as ET

from scheduler_core.verdict.schema import Comparison, Decision, Gate, Verdict


def junit(verdict: Verdict) -> str:
    """The verdict as JUnit XML; undecided and missing gates are skipped cases, an obstacle is an error."""
    root = ET.Element("testsuites", name=verdict.experiment)
    for comparison in verdict.comparisons:
        root.append(_suite(comparison))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(comparison: Comparison) -> ET.Element:
    cases = [_case(comparison, gate) for gate in comparison.gates]
    cases.append(_decision(comparison))
    count = {tag: sum(case.find(tag) is not None for case in cases) for tag in ("failure", "error", "skipped")}
    suite = ET.Element(
        "testsuite",
        name=f"{comparison.candidate} against {comparison.baseline}",
        tests=str(len(cases)),
        failures=str(count["failure"]),
        errors=str(count["error"]),
        skipped=str(count["skipped"]),
    )
    suite.extend(cases)
    return suite


def _case(comparison: Comparison, gate: Gate) -> ET.Element:
    case = ET.Element("testcase", classname=comparison.candidate, name=f"{gate.role} {gate.metric}")
    if gate.state == "failed":
        ET.SubElement(case, "failure", message=gate.sentence)
    elif gate.state in ("undecided", "missing"):
        ET.SubElement(case, "skipped", message=gate.sentence)
    else:
        ET.SubElement(case, "system-out").text = gate.sentence
    return case


def _decision(comparison: Comparison) -> ET.Element:
    case = ET.Element("testcase", classname=comparison.candidate, name="decision")
    if not comparison.comparable:
        ET.SubElement(case, "error", message="; ".join(comparison.obstacles))
    elif comparison.decision is Decision.ACCEPT:
        ET.SubElement(case, "system-out").text = comparison.headline
    else:
        ET.SubElement(case, "failure", message=comparison.headline)
    return case
