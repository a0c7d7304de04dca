// The samples of one attempt, in columns, each exactly once and without gaps in their numbers.

const MOST = 12_000; // shown at most; older ones stay on the server

export class SampleLog {
  attempt = null;
  last = 0; // number of the newest sample held
  count = 0; // received since the start
  t = [];
  columns = new Map();
  reduced = 0; // raw samples behind the reduced beginning, 0 when everything is raw

  constructor(keys) {
    for (const key of keys) this.columns.set(key, []);
  }

  clear(attempt) {
    this.attempt = attempt;
    this.last = this.count = this.reduced = 0;
    this.t.length = 0;
    for (const column of this.columns.values()) column.length = 0;
  }

  // A beginning reduced by the server: minimum and maximum for each pixel, up to sample number `last_seq`.
  seed(attempt, series) {
    this.clear(attempt);
    this.t.push(...series.t_s);
    for (const [key, column] of this.columns) column.push(...(series.series[key] ?? []));
    this.last = series.last_seq;
    this.count = series.n;
    this.reduced = series.bucketed ? series.n : 0;
  }

  // Take a message. Returns "gap" when samples between ours and the first of it are missing: ask again then.
  take(message) {
    if (message.attempt !== this.attempt) {
      if (message.mode !== "snapshot") return "gap";
      this.clear(message.attempt);
    }
    for (const sample of message.samples) {
      if (sample.seq <= this.last) continue;
      if (sample.seq !== this.last + 1) return "gap";
      this.last = sample.seq;
      this.count += 1;
      this.t.push(sample.t_s);
      for (const [key, column] of this.columns) column.push(sample[key] ?? null);
    }
    this.#trim();
    return "ok";
  }

  #trim() {
    const extra = this.t.length - MOST;
    if (extra <= 0) return;
    this.t.splice(0, extra);
    for (const column of this.columns.values()) column.splice(0, extra);
  }
}
