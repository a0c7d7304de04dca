// Forms: choices show their fields, filters submit themselves, parts of an editor are drawn again in place.

export function startForms() {
  document.addEventListener("change", (event) => {
    const target = event.target;
    if (target.matches("[data-choice-select]")) showVariant(target);
    if (target.matches("[data-autosubmit]")) target.form.requestSubmit();
    if (target.matches("[data-refresh]")) target.form.querySelector("[data-refresh-button]")?.click();
  });
  document.addEventListener("click", drawPart);
  document.querySelector("[role=alert][tabindex]")?.focus();
  document.getElementById("preview")?.scrollIntoView({ block: "start" });
}

function showVariant(select) {
  const box = select.closest("[data-choice]");
  for (const variant of box.querySelectorAll(":scope > [data-variant]")) {
    variant.hidden = variant.dataset.variant !== select.value;
  }
}

// Buttons that only change the form (add a row, switch to YAML) fetch the page and swap the editor, so that the place
// on the page is kept. If that fails, the ordinary submission is the way.
function drawPart(event) {
  const button = event.target.closest("button[data-partial]");
  const form = button?.form;
  if (!form || !globalThis.htmx) return;
  event.preventDefault();
  globalThis.htmx
    .ajax("POST", location.href, {
      source: form,
      target: "#editor",
      select: "#editor",
      swap: "outerHTML",
      values: { do: button.value },
    })
    .then(() => document.querySelector("#editor [role=alert]")?.focus());
}
