// The page of one run.

import { duration } from "./small.js";
import { stateBadge } from "./live/badge.js";
import { LiveConnection } from "./live/connection.js";
import { RunFollower } from "./live/follower.js";

const section = document.querySelector("[data-live-run]");
if (section) {
  const follower = new RunFollower(new LiveConnection(), section, (status) => show(status));
  follower.follow(section.dataset.liveRun);
  let wasOpen = false;

  function show(status) {
    const state = document.querySelector("[data-run-state]");
    state.replaceChildren(stateBadge(status.state, "large"));
    document.querySelector("[data-run-reason]").textContent = status.cancelling
      ? "stopping: a cancel was asked for"
      : status.reason;
    if (status.total) {
      document.querySelector("[data-run-progress]").textContent = `${status.done} of ${status.total} requests ended`;
      const bar = document.querySelector("[data-run-bar]");
      bar.max = status.total;
      bar.value = status.done;
    }
    document.querySelector("[data-run-eta]").textContent =
      status.eta_s && !status.ended ? `about ${duration(status.eta_s)} left` : "";
    for (const form of document.querySelectorAll("[data-while-open]")) form.hidden = status.ended;
    // The summary, events and files of the end are drawn by the server.
    if (status.ended && wasOpen) setTimeout(() => location.reload(), 1200);
    wasOpen = !status.ended;
  }
}
