// Lists stay current: rows of what has not ended follow their experiment; nothing moves, only states and progress.

import { duration } from "./small.js";
import { stateBadge, statusBadge } from "./live/badge.js";
import { LiveConnection } from "./live/connection.js";

const MOST = 24; // experiments followed at a time
const open = [...document.querySelectorAll("[data-follow]")].map((row) => row.dataset.follow);
const experiments = [...new Set(open)].slice(0, MOST);

if (experiments.length) {
  const connection = new LiveConnection();
  for (const experiment of experiments) {
    connection.follow(experiment, {
      subscribe: () => ({ type: "subscribe", experiment }),
      unsubscribe: { type: "unsubscribe", experiment },
      poll: () => `/live/experiments/${experiment}/`,
      receive: (message) => message.type === "experiment" && show(message, () => connection.leave(experiment)),
    });
  }
}

function show(message, leave) {
  const row = document.querySelector(`tr[data-experiment="${message.experiment}"]`);
  if (row) {
    put(row.querySelector("[data-status]"), statusBadge(message.status));
    row.querySelector("[data-ended]").textContent = `${message.runs_ended} of ${message.runs_total}`;
  }
  for (const run of message.runs) {
    const line = document.querySelector(`tr[data-run="${run.id}"]`);
    if (!line) continue;
    put(line.querySelector("[data-state]"), stateBadge(run.state));
    const left = run.eta_s && run.state === "running" ? `, ${duration(run.eta_s)} left` : "";
    if (run.total) line.querySelector("[data-progress]").textContent = `${run.done} of ${run.total}${left}`;
  }
  if (message.ended) leave();
}

function put(place, fresh) {
  if (place.textContent.trim() !== fresh.textContent) place.replaceChildren(fresh);
}
