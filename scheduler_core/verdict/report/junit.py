"""JUnit XML: one suite per comparison, sweep or isolation, one case per gate, so that any CI shows a verdict."""

from xml.etree import ElementTree as ET

from scheduler_core.verdict.schema import Comparison, Decision, Gate, IsolationVerdict, SweepVerdict, Verdict

Judged = Comparison | SweepVerdict | IsolationVerdict

_ALONE: dict[type, str] = {SweepVerdict: "load sensitivity", IsolationVerdict: "isolation"}
"""What a part of a verdict with a single arm is about."""


def junit(verdict: Verdict) -> str:
    """The verdict as JUnit XML; undecided and missing gates are skipped cases, an obstacle is an error."""
    root = ET.Element("testsuites", name=verdict.experiment)
    judged: list[Judged] = [*verdict.comparisons, *verdict.sweeps, *verdict.isolations]
    root.extend(_suite(item) for item in judged)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(item: Judged) -> ET.Element:
    name = item.candidate or item.baseline
    cases = [_case(name, gate) for gate in item.gates]
    cases.append(_decision(name, item))
    count = {tag: sum(case.find(tag) is not None for case in cases) for tag in ("failure", "error", "skipped")}
    suite = ET.Element(
        "testsuite",
        name=f"{item.candidate} against {item.baseline}" if item.candidate else f"{_ALONE[type(item)]} of {name}",
        tests=str(len(cases)),
        failures=str(count["failure"]),
        errors=str(count["error"]),
        skipped=str(count["skipped"]),
    )
    properties = ET.SubElement(suite, "properties")
    for line in item.conditions:
        ET.SubElement(properties, "property", name="condition", value=line)
    suite.extend(cases)
    return suite


def _case(name: str, gate: Gate) -> ET.Element:
    case = ET.Element("testcase", classname=name, name=f"{gate.role} {gate.metric}")
    if gate.state == "failed":
        ET.SubElement(case, "failure", message=gate.sentence)
    elif gate.state in ("undecided", "missing"):
        ET.SubElement(case, "skipped", message=gate.sentence)
    else:
        ET.SubElement(case, "system-out").text = gate.sentence
    return case


def _decision(name: str, item: Judged) -> ET.Element:
    case = ET.Element("testcase", classname=name, name="decision")
    if item.obstacles:
        ET.SubElement(case, "error", message="; ".join(item.obstacles))
    elif item.decision is Decision.ACCEPT or item.candidate is None:
        ET.SubElement(case, "system-out").text = item.headline
    else:
        ET.SubElement(case, "failure", message=item.headline)
    return case
