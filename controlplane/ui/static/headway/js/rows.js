// Rows of lists: the whole row leads where its link leads; j, k and Enter move and open.

const ROWS = "tr[data-href]";

export function startRows() {
  document.addEventListener("click", (event) => {
    if (event.target.closest("a, button, input, select, label, summary")) return;
    const row = event.target.closest(ROWS);
    if (row && !String(getSelection())) location.assign(row.dataset.href);
  });
}

export function moveRow(step) {
  const rows = [...document.querySelectorAll(ROWS)];
  if (!rows.length) return false;
  const now = rows.indexOf(document.activeElement?.closest(ROWS));
  const next = now < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, now + step));
  rows[next].focus();
  rows[next].scrollIntoView({ block: "nearest" });
  return true;
}

export function openRow() {
  const row = document.activeElement?.closest(ROWS);
  if (!row) return false;
  location.assign(row.dataset.href);
  return true;
}
