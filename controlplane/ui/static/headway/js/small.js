// Copy buttons and relative times.

export function startCopying() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy], [data-copy-pre]");
    if (!button) return;
    const text = button.dataset.copy ?? button.parentElement.querySelector("pre").textContent;
    const done = await copy(text);
    const use = button.querySelector("use");
    const before = use.getAttribute("href");
    use.setAttribute("href", before.replace(/#.*/, done ? "#check" : "#cross"));
    setTimeout(() => use.setAttribute("href", before), 1200);
  });
}

// Plain HTTP on another host has no clipboard; a selected field is the old way.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

export function startTimes() {
  setInterval(() => {
    for (const time of document.querySelectorAll("time[data-ago]")) time.textContent = ago(time.dateTime);
  }, 10_000);
}

function ago(iso) {
  const seconds = (Date.now() - new Date(iso)) / 1000;
  if (seconds < 0) return `in ${about(-seconds)}`;
  return seconds < 5 ? "just now" : `${about(seconds)} ago`;
}

function about(seconds) {
  for (const [length, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= length) return `${Math.round(seconds / length)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}

export function duration(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}
