// Follows one run: its samples into charts, its connection and age into the bar above them.

import { badge, iconOf } from "./badge.js";
import { ChartBoard } from "./charts.js";
import { SampleLog } from "./samples.js";

const STALE_AFTER_S = 5;
const REDUCE_ABOVE = 4_000; // samples; a longer beginning is fetched reduced to the width of the screen
const MOST_POINTS = 6_000; // when a line has more, its beginning is fetched again, reduced

export class RunFollower {
  status = null;
  #heardAt = 0;
  #catching = true;
  #run = null;
  #paused = false;
  #shortening = false;

  // `onStatus(status)` is told of every message's run status.
  constructor(connection, root, onStatus) {
    this.connection = connection;
    this.onStatus = onStatus;
    this.specs = JSON.parse(document.getElementById("chart-specs").textContent);
    this.log = new SampleLog(new Map(this.specs.flatMap((spec) => spec.lines.map((line) => [line.key, line.factor]))));
    this.board = new ChartBoard();
    for (const spec of this.specs) {
      const box = root.querySelector(`[data-chart="${spec.id}"]`);
      if (box) this.board.add(box, spec, () => this.#lines(spec));
    }
    this.bar = root.querySelector("[data-livebar]");
    this.bar.querySelector("[data-live-pause]").addEventListener("click", (event) => this.#pause(event.currentTarget));
    connection.addEventListener("state", () => this.#show());
    setInterval(() => this.#show(), 1000);
    this.#show();
    this.board.draw();
  }

  get run() {
    return this.#run;
  }

  async follow(run) {
    if (run === this.#run) return;
    if (this.#run) this.connection.leave(this.#run);
    this.#run = run;
    this.status = null;
    this.#catching = true;
    this.log.clear(null);
    await this.#begin(run);
    if (this.#run !== run) return;
    this.connection.follow(run, {
      subscribe: () => ({ type: "subscribe", run, attempt: this.log.attempt, after: this.log.last }),
      unsubscribe: { type: "unsubscribe", run },
      poll: () => (this.status?.ended && !this.#catching ? null : `/live/runs/${run}/?attempt=${this.log.attempt ?? 0}&after=${this.log.last}`),
      receive: (message) => this.#receive(message),
    });
  }

  // A long beginning comes reduced; what follows its last number then comes raw.
  async #begin(run) {
    try {
      const keys = encodeURIComponent([...this.log.points.keys()].join(","));
      const response = await fetch(`/live/runs/${run}/series/?width=${Math.min(1500, innerWidth)}&keys=${keys}`);
      const series = response.ok ? await response.json() : null;
      if (series && series.n > REDUCE_ABOVE && this.#run === run) this.log.seed(series);
    } catch {
      // Without it everything comes raw.
    }
  }

  async #shorten() {
    if (this.#shortening) return;
    this.#shortening = true;
    await this.#begin(this.#run);
    this.#shortening = false;
    this.connection.resume(this.#run);
  }

  #receive(message) {
    if (message.type !== "run") return;
    const news = message.samples.length > 0;
    if (this.log.take(message) === "gap") {
      this.connection.resume(this.#run);
      return;
    }
    if (news) this.#heardAt = performance.now();
    if (news) this.#account(message.samples.at(-1));
    this.#catching = message.catching_up;
    this.status = message.status;
    this.onStatus(message.status);
    if (this.log.length > MOST_POINTS) this.#shorten();
    this.#show();
    this.board.draw();
  }

  // The check light: blocks, requests and tokens conserved so far, or the first law that was broken.
  #account(sample) {
    const light = this.bar.querySelector("[data-live-account]");
    const { account_checks: checks, account_broken: broken } = sample;
    if (!light || checks == null) return;
    const word = broken ? `Account broken: ${broken}` : `Account holds, ${checks.toLocaleString("en")} checks`;
    const fresh = badge(broken ? "bad" : "good", broken ? "cross" : "check", word);
    fresh.dataset.liveAccount = "";
    light.replaceWith(fresh);
  }

  #lines(spec) {
    const { points, start, end } = this.log;
    const lines = spec.lines.map((line) => ({ ...line, points: points.get(line.key) }));
    return { lines, from: start, to: Math.max(end, start + 1) };
  }

  #pause(button) {
    this.#paused = !this.#paused;
    this.board.paused = this.#paused;
    button.setAttribute("aria-pressed", String(this.#paused));
    button.replaceChildren(iconOf(this.#paused ? "play" : "pause"), Object.assign(document.createElement("span"), { textContent: this.#paused ? "Go on" : "Pause" }));
    this.#show();
    this.board.draw();
  }

  #show() {
    const age = this.#heardAt ? (performance.now() - this.#heardAt) / 1000 : null;
    const [tone, icon, word] = this.#reading(age);
    const state = this.bar.querySelector("[data-live-state]");
    if (state.textContent.trim() !== word) {
      const fresh = badge(tone, icon, word);
      fresh.dataset.liveState = "";
      state.replaceWith(fresh);
    }
    const ended = this.status?.ended;
    this.bar.querySelector("[data-live-age]").textContent =
      ended || age === null ? "" : `newest sample ${age < 1 ? "just now" : `${Math.floor(age)} s ago`}`;
    this.bar.querySelector("[data-live-pause]").hidden = Boolean(ended) && !this.#paused; // nothing moves any more
    const { count, reduced } = this.log;
    this.bar.querySelector("[data-live-note]").textContent = count
      ? `${count.toLocaleString("en")} ${count === 1 ? "sample" : "samples"}${reduced ? `, the first ${reduced.toLocaleString("en")} reduced to minimum and maximum per pixel` : ""}`
      : "";
  }

  #reading(age) {
    const { state } = this.connection;
    if (state === "stopped") return ["bad", "exit", "Signed out: sign in again"];
    if (this.#paused) return ["warn", "pause", "Paused"];
    if (this.status?.ended && !this.#catching) return ["", "check", "Ended"];
    if (!this.#run) return ["", "clock", "Waiting"];
    if (state === "connecting") return ["warn", "retry", "Connecting"];
    if (this.#catching) return ["info", "download", "Catching up"];
    if (this.status && !["running", "finalising"].includes(this.status.state)) return ["", "clock", "Waiting for samples"];
    if (age !== null && age > STALE_AFTER_S) return ["warn", "warn", `Stale for ${Math.floor(age)} s`];
    return state === "polling" ? ["warn", "retry", "Live by polling"] : ["good", "live", "Live"];
  }
}
