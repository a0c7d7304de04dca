// State badges drawn by scripts look as the server draws them: icon and word, from the same table.

const looks = JSON.parse(document.getElementById("state-looks")?.textContent ?? "null");

export function stateBadge(state, extra = "") {
  const look = looks?.states[state] ?? { tone: "", icon: "info", word: state };
  return badge(look.tone, look.icon, look.word, extra);
}

export function statusBadge(status, extra = "") {
  const look = looks?.statuses[status] ?? { tone: "", icon: "info", word: status };
  return badge(look.tone, look.icon, look.word, extra);
}

export function badge(tone, icon, word, extra = "") {
  const element = document.createElement("span");
  element.className = `badge ${tone} ${extra}`;
  element.append(iconOf(icon), Object.assign(document.createElement("span"), { textContent: word }));
  return element;
}

export function iconOf(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `${looks?.icons}#${name}`);
  svg.append(use);
  return svg;
}
