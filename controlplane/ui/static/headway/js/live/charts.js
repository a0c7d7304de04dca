// Charts on Chart.js, prepared for many points: no animation, no parsing, own arrays, drawn only when seen, and at
// most four times a second. One crosshair runs through all charts of a page; the legend shows its values, or else the
// newest ones, and is the chart's reading for those who do not see it.

const DRAW_EVERY_MS = 250;
const TABLE_ROWS = 100;

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  if (Math.abs(value) >= 100) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

export function clock(seconds) {
  const whole = Math.floor(seconds);
  if (seconds < 60) return `${number(Math.round(seconds * 10) / 10)} s`;
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

// Custom properties hold light-dark(); only a computed colour says which one is in force.
function colour(name) {
  const probe = document.createElement("span");
  probe.className = "visually-hidden";
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

export class ChartBoard {
  #views = [];
  #due = false;
  #drawn = 0;
  paused = false;

  constructor() {
    this.seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const view = this.#views.find((item) => item.root === entry.target);
        if (view) view.visible = entry.isIntersecting;
      }
      this.draw();
    });
    document.addEventListener("headway:theme", () => {
      for (const view of this.#views) view.paint();
      this.draw();
    });
    document.addEventListener("visibilitychange", () => !document.hidden && this.draw());
    addEventListener("pagehide", (event) => !event.persisted && this.#views.forEach((view) => view.chart.destroy()));
  }

  add(root, spec, source) {
    const view = new ChartView(root, spec, source, (x) => this.#cross(x));
    this.#views.push(view);
    this.seen.observe(root);
    return view;
  }

  // Draw soon: several calls become one, and never more than four a second.
  draw() {
    if (this.#due || document.hidden) return;
    this.#due = true;
    const wait = Math.max(0, this.#drawn + DRAW_EVERY_MS - performance.now());
    setTimeout(() => requestAnimationFrame(() => {
      this.#due = false;
      this.#drawn = performance.now();
      if (this.paused) return;
      for (const view of this.#views) {
        if (view.visible) view.update();
        else view.say(); // out of sight, but not out of reach of those who listen
      }
    }), wait);
  }

  #cross(x) {
    for (const view of this.#views) if (view.visible) view.cross(x);
  }
}

// Draws the crosshair at chart.crossAt.
const crosshair = {
  id: "crosshair",
  afterDatasetsDraw(chart) {
    if (chart.crossAt === null || chart.crossAt === undefined) return;
    const x = chart.scales.x.getPixelForValue(chart.crossAt);
    const { top, bottom, left, right } = chart.chartArea;
    if (x < left || x > right) return;
    const context = chart.ctx;
    context.save();
    context.strokeStyle = chart.crossColour;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x, bottom);
    context.stroke();
    context.restore();
  },
};

class ChartView {
  visible = true;
  lines = []; // as last read from the source: a person may point at a chart, or ask for its table, before its first drawing

  // `source()` gives {lines: [{label, colour, dashed, points: [{x, y}]}], from, to}.
  constructor(root, spec, source, onCross) {
    this.root = root;
    this.spec = spec;
    this.source = source;
    this.canvas = root.querySelector("canvas");
    this.legend = root.querySelector(".legend");
    this.table = root.querySelector(".table");
    this.chart = new globalThis.Chart(this.canvas, { type: "line", data: { datasets: [] }, options: this.#options(), plugins: [crosshair] });
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      onCross(this.chart.scales.x.getValueForPixel(event.clientX - box.left));
    });
    this.canvas.addEventListener("pointerleave", () => onCross(null));
    root.querySelector("[data-table-toggle]")?.addEventListener("click", (event) => this.#toggle(event.currentTarget));
    this.paint();
  }

  #options() {
    const { spec } = this;
    return {
      animation: false,
      parsing: false,
      normalized: true,
      responsive: true,
      maintainAspectRatio: false,
      events: [],
      spanGaps: false,
      elements: { point: { radius: 0 }, line: { borderWidth: 1.5 } },
      plugins: { legend: { display: false }, tooltip: { enabled: false } },
      scales: {
        x: { type: "linear", ticks: { maxRotation: 0, autoSkipPadding: 24, callback: clock }, grid: { display: false } },
        y: {
          beginAtZero: true,
          stacked: Boolean(spec.stacked),
          suggestedMax: spec.top ?? undefined,
          ticks: { maxTicksLimit: 5, callback: number },
          border: { display: false },
        },
      },
    };
  }

  // Colours of the theme in force.
  paint() {
    const ink = colour("--ink-3");
    const { x, y } = this.chart.options.scales;
    x.ticks.color = y.ticks.color = ink;
    x.border = { color: colour("--line-strong") };
    y.grid = { color: colour("--line") };
    this.chart.crossColour = ink;
    this.colours = [1, 2, 3, 4, 5, 6].map((place) => colour(`--series-${place}`));
  }

  update() {
    const { lines, from, to } = this.source();
    this.lines = lines;
    this.chart.data.datasets = lines.map((line, place) => this.#dataset(line, place));
    const { x } = this.chart.options.scales;
    x.min = from;
    x.max = to;
    this.chart.options.scales.y.max = lidOf(lines);
    this.chart.update("none");
    this.#read();
    if (!this.table.hidden) this.#fill();
  }

  // The readings alone.
  say() {
    this.lines = this.source().lines;
    this.#read();
  }

  // The page's own array of points is handed over anew each time.
  #dataset(line, place) {
    const stroke = this.colours[(line.colour - 1) % 6];
    const dataset = { label: line.label, data: line.points, borderColor: stroke, borderDash: line.dashed ? [5, 4] : [] };
    if (!this.spec.stacked) return dataset;
    const tint = stroke.replaceAll(", ", " ").replace(")", " / 28%)");
    return { ...dataset, backgroundColor: tint, fill: place === 0 ? "origin" : "-1" };
  }

  cross(x) {
    this.chart.crossAt = x;
    this.chart.draw();
    this.#read();
  }

  // The legend with values at the crosshair, or the newest; the same in words for the canvas.
  #read() {
    const at = this.chart.crossAt ?? null;
    const values = this.lines.map(({ points }) => points[at === null ? points.length - 1 : nearest(points, at)]?.y);
    if (this.legend.childElementCount !== this.lines.length) this.#makeLegend();
    [...this.legend.children].forEach((item, place) => {
      item.querySelector("b").textContent = number(values[place]);
    });
    const words = this.lines.map((line, place) => `${line.label} ${number(values[place])}`).join(", ");
    const newest = this.lines[0]?.points.at(-1);
    const when = newest ? `at ${clock(newest.x)}` : "no samples yet";
    this.canvas.setAttribute("aria-label", `${this.spec.title}, ${this.spec.unit}: ${words}, ${when}`);
  }

  #makeLegend() {
    this.legend.replaceChildren(...this.lines.map((line) => {
      const item = document.createElement("li");
      item.className = `s${((line.colour - 1) % 6) + 1}`;
      const mark = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      mark.setAttribute("viewBox", "0 0 18 8");
      mark.setAttribute("aria-hidden", "true");
      const stroke = document.createElementNS("http://www.w3.org/2000/svg", "line");
      for (const [name, value] of Object.entries({ x1: 0, x2: 18, y1: 4, y2: 4, stroke: "currentColor", "stroke-width": 2.5 })) {
        stroke.setAttribute(name, value);
      }
      if (line.dashed) stroke.setAttribute("stroke-dasharray", "4 3");
      mark.append(stroke);
      const label = document.createElement("span");
      label.textContent = line.label;
      label.style.color = "var(--ink-2)";
      item.append(mark, label, document.createElement("b"));
      return item;
    }));
  }

  #toggle(button) {
    const shown = this.table.hidden;
    this.table.hidden = !shown;
    this.canvas.parentElement.hidden = shown;
    button.setAttribute("aria-pressed", String(shown));
    this.say();
    if (shown) this.#fill();
  }

  // The newest samples, the newest first.
  #fill() {
    const first = this.lines[0]?.points ?? [];
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const text of ["Time", ...this.lines.map((line) => `${line.label} (${this.spec.unit})`)]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.className = head.cells.length ? "num" : "";
      cell.textContent = text;
      head.append(cell);
    }
    const body = table.createTBody();
    for (let index = first.length - 1; index >= Math.max(0, first.length - TABLE_ROWS); index -= 1) {
      const row = body.insertRow();
      row.insertCell().textContent = clock(first[index].x);
      for (const line of this.lines) {
        const cell = row.insertCell();
        cell.className = "num";
        cell.textContent = number(line.points[index]?.y);
      }
    }
    this.table.replaceChildren(table);
  }
}

// A dashed line is a limit. One far above the rest would press the rest flat: the axis then ends above the rest, and
// the legend alone says where the limit is.
function lidOf(lines) {
  if (!lines.some((line) => line.dashed)) return undefined;
  const top = (dashed) => lines.filter((line) => Boolean(line.dashed) === dashed)
    .reduce((most, line) => line.points.reduce((so, point) => (point.y > so ? point.y : so), most), 0);
  const rest = top(false);
  return rest > 0 && top(true) > 3 * rest ? rest * 1.15 : undefined;
}

// Index of the point nearest to `x`, points rising in x; -1 when there is none.
function nearest(points, x) {
  if (!points.length) return -1;
  let low = 0;
  let high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle].x < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - points[low - 1].x < points[low].x - x ? low - 1 : low;
}
