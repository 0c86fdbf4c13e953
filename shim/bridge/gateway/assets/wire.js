// The server: requests, and streams that come back by themselves.

const MAX_SILENCE_MS = 40000; // without a byte: the server says a comment every 15 s
const RESPONSE_TIMEOUT_MS = 20000; // for the answer of a request
const RETRY_WAITS_MS = [200, 500, 1000, 2000, 4000]; // before the next try; the last for all later ones

/** The server did not answer, or refused: `status` is 0 if it was not reached. */
class RequestError extends Error {
  constructor(status, body) {
    super((body && (body.error || body.reason)) || (status ? `The server answered with the status ${status}.` : "The server does not respond."));
    this.status = status;
    this.body = body || {};
  }
}

/** What shows that this page asks. A browser sends the cookie to every port of a name; this is kept for one port alone. */
const proof = {
  value: "",
  store(value) {
    this.value = value;
    storeValue(localStorage, "proof", value);
  },
  header() {
    const value = this.value || readStored(localStorage, "proof");
    return value ? { "X-Shim-Page": value } : {};
  },
};

/** What the server answers, as JSON. Throws RequestError. */
async function sendRequest(method, path, body) {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), RESPONSE_TIMEOUT_MS);
  let status = 0;
  let responseBody = null;
  try {
    const headers = { ...proof.header(), ...(body === undefined ? {} : { "Content-Type": "application/json" }) };
    const response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: stop.signal, cache: "no-store", redirect: "error" });
    status = response.status;
    responseBody = await response.json().catch(() => null);
  } catch {
    throw new RequestError(0);
  } finally {
    clearTimeout(timer);
  }
  if (status === 401) askForToken();
  if (status >= 400) throw new RequestError(status, responseBody);
  return responseBody;
}

/** Takes a stream of server-sent events apart; `onEvent(event, data, id)` for each. */
class EventParser {
  constructor(onEvent) {
    this.onEvent = onEvent;
    this.rest = "";
    this.event = "";
    this.data = [];
    this.id = "";
  }

  feed(text) {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop();
    for (const line of lines) this.line(line.endsWith("\r") ? line.slice(0, -1) : line);
  }

  line(line) {
    if (line === "") {
      if (this.data.length) this.onEvent(this.event || "message", this.data.join("\n"), this.id);
      this.event = "";
      this.data = [];
      return;
    }
    const at = line.indexOf(":");
    const name = at < 0 ? line : line.slice(0, at);
    const value = at < 0 ? "" : line.slice(at + (line[at + 1] === " " ? 2 : 1));
    if (name === "event") this.event = value;
    else if (name === "data") this.data.push(value);
    else if (name === "id") this.id = value;
  }
}

/**
 * A stream that goes on from its last id whenever it broke, until it is closed. `onEvent(event, data)` gets each event once,
 * `onConnectionChange(connected, error)` what the line is doing. EventSource would do, if it said why it broke and noticed silence.
 * `state`: "open" (it is connected, or tries to be), "resting" (nobody looks: it is parked once its connection has ended),
 * "parked" (nothing more comes until somebody says `reconnect`), "closed" (for good).
 */
class Stream {
  constructor(path, onEvent, onConnectionChange) {
    Object.assign(this, { path, onEvent, onConnectionChange, last: "", tries: 0, state: "open", stop: null, wake: null });
    this.run();
  }

  async run() {
    while (this.state !== "closed") {
      let error = new RequestError(0);
      try {
        error = await this.connectOnce();
      } catch {
        // The network or the server has gone: the next try says more.
      }
      if (this.state === "closed") return;
      if (this.state === "resting") return this.park();
      if (error && error.status === 204) {
        this.onEvent("bye", {}); // all was seen before the session ended: the server has nothing more to say, not even that
        return this.park();
      }
      if (error && [400, 401, 403, 404].includes(error.status)) return this.onConnectionChange(false, error);
      this.onConnectionChange(false, null);
      await this.pause();
      if (this.state === "resting") return this.park();
    }
  }

  /** One connection, to its end. */
  async connectOnce() {
    this.stop = new AbortController();
    let timer = setTimeout(() => this.stop.abort(), MAX_SILENCE_MS);
    try {
      const headers = { ...proof.header(), Accept: "text/event-stream", ...(this.last ? { "Last-Event-ID": this.last } : {}) };
      const response = await fetch(this.path, { headers, signal: this.stop.signal, cache: "no-store", redirect: "error" });
      if (response.status === 401) askForToken();
      if (response.status === 204) return new RequestError(204);
      if (!response.ok) return new RequestError(response.status, await response.json().catch(() => null));
      const events = new EventParser((event, data, id) => {
        if (this.state === "closed") return;
        this.onEvent(event, JSON.parse(data));
        if (id) this.last = id; // only now: what was not drawn is said again
      });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      this.onConnectionChange(true, null);
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return null;
        this.tries = 0;
        clearTimeout(timer);
        timer = setTimeout(() => this.stop.abort(), MAX_SILENCE_MS);
        events.feed(value);
      }
    } finally {
      clearTimeout(timer);
      this.stop.abort();
    }
  }

  park() {
    this.state = "parked";
    this.onConnectionChange(true, null);
  }

  pause() {
    const wait = RETRY_WAITS_MS[Math.min(this.tries, RETRY_WAITS_MS.length - 1)];
    this.tries += 1;
    return new Promise((done) => {
      const timer = setTimeout(done, wait);
      this.wake = () => {
        clearTimeout(timer);
        done();
      };
    });
  }

  /** Try again now. */
  reconnect() {
    this.tries = 0;
    if (this.wake) this.wake();
    const before = this.state;
    if (before !== "closed") this.state = "open";
    if (before === "parked") this.run();
  }

  /** Nobody looks: give the connection back. A browser has six for all pages of a server. */
  rest() {
    if (this.state !== "open") return;
    this.state = "resting";
    this.cut();
    if (this.wake) this.wake();
  }

  /** The network has gone: do not wait for the silence to be long. */
  cut() {
    if (this.stop) this.stop.abort();
  }

  close() {
    this.state = "closed";
    this.cut();
    if (this.wake) this.wake();
  }
}

/** A random UUID; also where the page did not come over TLS. */
function createId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 15) | 64;
  bytes[8] = (bytes[8] & 63) | 128;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}
