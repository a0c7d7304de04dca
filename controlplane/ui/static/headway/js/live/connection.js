// One socket for a page, many topics; any close means "resume", polling of the same messages bridges the gaps.
//
// A topic is {subscribe(): message, unsubscribe: message, poll(): URL or null, receive(message)}. Its subscribe message
// says how far the page is, so after any break the server sends exactly what is missing.

const STOP = new Set([4401, 4403]);
const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 20_000;
const SILENCE_MS = 40_000; // the server beats every 15 s
const PING_EVERY_MS = 20_000;
const POLL_EVERY_MS = 2_000;
const POLL_AFTER_FAILURES = 2;

export class LiveConnection extends EventTarget {
  #topics = new Map();
  #socket = null;
  #failures = 0;
  #retry = 0;
  #poll = 0;
  #heard = 0;
  #polling = false;
  state = "connecting"; // connecting, open, polling, stopped

  constructor() {
    super();
    this.#connect();
    setInterval(() => this.#tend(), PING_EVERY_MS);
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.#hurry();
    });
    addEventListener("online", () => this.#hurry());
    addEventListener("pagehide", () => this.#socket?.close());
    addEventListener("pageshow", (event) => event.persisted && this.#hurry());
  }

  follow(key, topic) {
    this.#topics.set(key, topic);
    this.#send(topic.subscribe());
    if (this.#polling) this.#pollAll();
  }

  leave(key) {
    const topic = this.#topics.get(key);
    this.#topics.delete(key);
    if (topic) this.#send(topic.unsubscribe);
  }

  // Ask again for what is missing, as after a gap in the numbers.
  resume(key) {
    const topic = this.#topics.get(key);
    if (topic) this.#send(topic.subscribe());
  }

  #connect() {
    clearTimeout(this.#retry);
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live/`);
    this.#socket = socket;
    socket.onopen = () => {
      this.#heard = performance.now();
      for (const topic of this.#topics.values()) this.#send(topic.subscribe());
    };
    socket.onmessage = (event) => {
      this.#failures = 0;
      this.#heard = performance.now();
      this.#stopPolling();
      this.#become("open");
      this.#deliver(JSON.parse(event.data));
    };
    socket.onclose = (event) => {
      if (this.#socket === socket) this.#lost(event.code);
    };
  }

  #lost(code) {
    this.#socket = null;
    if (STOP.has(code)) {
      this.#stopPolling();
      this.#become("stopped");
      return;
    }
    this.#failures += 1;
    if (this.#failures > POLL_AFTER_FAILURES) this.#startPolling();
    else this.#become("connecting");
    const ceiling = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#failures);
    this.#retry = setTimeout(() => this.#connect(), ceiling * (0.5 + Math.random() / 2));
  }

  // The tab is looked at, or the network is back: no need to wait.
  #hurry() {
    if (this.state === "stopped") return;
    if (!this.#socket) this.#connect();
    else this.#tend();
  }

  #tend() {
    const socket = this.#socket;
    if (!socket || socket.readyState !== WebSocket.OPEN) return;
    if (performance.now() - this.#heard > SILENCE_MS) {
      this.#socket = null;
      socket.close();
      this.#lost(0);
    } else {
      this.#send({ type: "ping" });
    }
  }

  #send(message) {
    if (message && this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  #deliver(message) {
    const topic = this.#topics.get(message.run ?? message.experiment);
    if (topic) topic.receive(message);
  }

  #become(state) {
    if (this.state === state) return;
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }

  #startPolling() {
    if (this.#polling) return;
    this.#polling = true;
    this.#become("polling");
    this.#pollAll();
  }

  #stopPolling() {
    this.#polling = false;
    clearTimeout(this.#poll);
  }

  async #pollAll() {
    clearTimeout(this.#poll);
    for (const topic of [...this.#topics.values()]) await this.#pollOne(topic);
    if (this.#polling) this.#poll = setTimeout(() => this.#pollAll(), POLL_EVERY_MS);
  }

  async #pollOne(topic) {
    for (let more = true; more && this.#polling; ) {
      more = false;
      const url = topic.poll();
      if (!url) return;
      try {
        const response = await fetch(url, { headers: { Accept: "application/json" }, redirect: "manual" });
        if (response.type === "opaqueredirect") {
          this.#stopPolling();
          this.#become("stopped");
        } else if (response.ok) {
          const message = await response.json();
          topic.receive(message);
          more = message.catching_up === true;
        }
      } catch {
        // The server is away; the next round asks again.
      }
    }
  }
}
