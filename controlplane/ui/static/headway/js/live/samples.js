// The samples of one attempt as points ready to draw, each sample exactly once and without gaps in their numbers.

// What a sample has under a key: `pools.GROUP.NAME` is a figure of one group of a cluster's instances.
function valueOf(sample, key) {
  if (!key.startsWith("pools.")) return sample[key];
  const path = key.slice("pools.".length);
  const dot = path.lastIndexOf(".");
  return sample.pools?.[path.slice(0, dot)]?.[path.slice(dot + 1)];
}

export class SampleLog {
  attempt = null;
  last = 0; // number of the newest sample held
  count = 0; // samples received or stood for
  reduced = 0; // raw samples behind a reduced beginning, 0 when everything is raw
  #factors; // key of a sample -> factor from its unit to the chart's

  constructor(factors) {
    this.#factors = factors;
    this.points = new Map([...factors.keys()].map((key) => [key, []]));
  }

  get length() {
    return this.points.values().next().value.length;
  }

  get start() {
    return this.points.values().next().value[0]?.x ?? 0;
  }

  get end() {
    return this.points.values().next().value.at(-1)?.x ?? 0;
  }

  clear(attempt) {
    this.attempt = attempt;
    this.last = this.count = this.reduced = 0;
    for (const points of this.points.values()) points.length = 0;
  }

  // A beginning reduced by the server: minimum and maximum for each pixel, up to sample number `last_seq`.
  seed(series) {
    this.clear(series.attempt);
    for (const [key, points] of this.points) {
      const values = series.series[key] ?? [];
      series.t_s.forEach((at, index) => points.push(this.#point(key, at, values[index])));
    }
    this.last = series.last_seq;
    this.count = series.n;
    this.reduced = series.bucketed ? series.n : 0;
  }

  // Take a message. Answers "gap" when samples between ours and its first are missing: ask again then.
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
      for (const [key, points] of this.points) points.push(this.#point(key, sample.t_s, valueOf(sample, key)));
    }
    return "ok";
  }

  // What is absent is a gap in the line, never a zero.
  #point(key, x, value) {
    return { x, y: value === null || value === undefined ? NaN : value * this.#factors.get(key) };
  }
}
