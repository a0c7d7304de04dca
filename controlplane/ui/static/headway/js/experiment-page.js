// The page of one experiment: the matrix of runs live, charts of the run that is running, or arms over each other.

import { duration } from "./small.js";
import { stateBadge, statusBadge } from "./live/badge.js";
import { ChartBoard, number } from "./live/charts.js";
import { LiveConnection } from "./live/connection.js";
import { RunFollower } from "./live/follower.js";

const read = (id) => JSON.parse(document.getElementById(id).textContent);
const section = document.querySelector("[data-live-experiment]");
const overlay = document.querySelector("[data-overlay]");
if (section) followExperiment(section.dataset.liveExperiment);
if (overlay) showOverlay();

function followExperiment(experiment) {
  const connection = new LiveConnection();
  const page = document.querySelector("main");
  const follower = new RunFollower(connection, page, () => {});
  const started = performance.now();
  let startShare = null;
  const topic = {
    subscribe: () => ({ type: "subscribe", experiment }),
    unsubscribe: { type: "unsubscribe", experiment },
    poll: () => `/live/experiments/${experiment}/`,
    receive: show,
  };
  const known = read("experiment-state").runs.length;
  show(read("experiment-state"));
  connection.follow(experiment, topic);

  function show(message) {
    if (message.type !== "experiment") return;
    for (const run of message.runs) drawCell(run);
    document.querySelector("[data-experiment-status]").replaceChildren(statusBadge(message.status, "large"));
    const bar = document.querySelector("[data-experiment-bar]");
    bar.value = message.done_share;
    document.querySelector("[data-experiment-progress]").textContent =
      `${message.runs_ended} of ${message.runs_total} runs ended`;
    startShare ??= message.done_share;
    document.querySelector("[data-experiment-eta]").textContent = eta(message.done_share);
    followRunning(message.runs);
    // A declared look may have queued further repeats: the matrix grows with them.
    if (message.ended || message.runs.length > known) setTimeout(() => location.reload(), 800);
  }

  // From the pace since the page was opened; nothing is said before there is one.
  function eta(share) {
    const gained = share - startShare;
    const spent = (performance.now() - started) / 1000;
    return gained > 0.02 && share < 1 ? `about ${duration((spent / gained) * (1 - share))} left` : "";
  }

  function followRunning(runs) {
    const active = runs.find((run) => run.id === follower.run && !run.ended && run.state !== "queued");
    const next = active ?? runs.find((run) => ["running", "finalising", "starting"].includes(run.state));
    if (!next) return;
    document.querySelector("[data-following]").textContent = `Following ${next.arm}, repeat ${next.repeat + 1}.`;
    follower.follow(next.id);
  }
}

function drawCell(run) {
  const cell = document.querySelector(`[data-run="${run.id}"]`);
  if (!cell) return;
  const drawn = cell.querySelector("[data-state]");
  if (drawn.textContent.trim() !== run.label) drawn.replaceChildren(stateBadge(run.state, "plain"));
  const bar = cell.querySelector("progress");
  bar.max = run.total || 1;
  bar.value = run.done;
  const text = cell.querySelector("[data-text]");
  if (run.total && text.dataset.text !== "figure") {
    const left = run.eta_s && run.state === "running" ? `, ${duration(run.eta_s)} left` : "";
    text.textContent = `${run.done} of ${run.total}${left}`;
  }
}

// Arms over each other: one figure, one repeat, one line an arm.
function showOverlay() {
  const specs = read("chart-specs");
  const runs = read("overlay-runs");
  const repeat = document.querySelector("[data-overlay-repeat]");
  const key = document.querySelector("[data-overlay-key]");
  if (!repeat || !repeat.options.length) return;
  const spec = { title: "", unit: "", lines: [] };
  const board = new ChartBoard();
  const fetched = new Map();
  let lines = [];
  board.add(overlay, spec, () => ({
    lines,
    from: 0,
    to: Math.max(1, ...lines.map((line) => line.points.at(-1)?.x ?? 0)),
  }));

  async function series(run) {
    if (!fetched.has(run)) {
      const response = await fetch(`/live/runs/${run}/series/?width=900`);
      fetched.set(run, response.ok ? await response.json() : { t_s: [], series: {}, n: 0 });
    }
    return fetched.get(run);
  }

  async function show() {
    const chart = specs.find((item) => item.lines.some((line) => line.key === key.value));
    const line = chart.lines.find((item) => item.key === key.value);
    spec.title = `${chart.title}: ${line.label}`;
    spec.unit = chart.unit;
    overlay.querySelector("[data-overlay-title]").textContent = `${spec.title} (${spec.unit})`;
    const chosen = runs.filter((run) => String(run.repeat) === repeat.value);
    const data = await Promise.all(chosen.map((run) => series(run.run)));
    lines = chosen.map((run, place) => ({
      label: run.arm,
      colour: (run.place % 6) + 1,
      points: pointsOf(data[place], key.value, line.factor),
    }));
    const total = data.reduce((sum, item) => sum + item.n, 0);
    const reduced = data.some((item) => item.bucketed);
    overlay.querySelector("[data-overlay-note]").textContent = total
      ? `From ${number(total)} samples${reduced ? ", reduced to minimum and maximum per pixel" : ""}.`
      : "No samples were stored for this repeat.";
    board.draw();
  }

  repeat.addEventListener("change", show);
  key.addEventListener("change", show);
  show();
}

function pointsOf(data, key, factor) {
  const values = data.series[key] ?? [];
  return data.t_s.map((x, index) => ({ x, y: values[index] === null || values[index] === undefined ? NaN : values[index] * factor }));
}
