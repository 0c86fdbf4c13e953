// The server: requests, and streams that come back by themselves.

const SILENCE_MS = 40000; // without a byte: the server says a comment every 15 s
const ANSWER_MS = 20000; // for the answer of a request
const WAITS_MS = [200, 500, 1000, 2000, 4000]; // before the next try; the last for all later ones

/** The server did not answer, or refused: `status` is 0 if it was not reached. */
class Refused extends Error {
  constructor(status, body) {
    super((body && (body.error || body.reason)) || (status ? `The server answered ${status}.` : "The server does not answer."));
    this.status = status;
    this.body = body || {};
  }
}

/** What shows that this page asks. A browser sends the cookie to every port of a name; this is kept for one port alone. */
const proof = {
  value: "",
  keep(value) {
    this.value = value;
    keep(localStorage, "proof", value);
  },
  header() {
    const value = this.value || kept(localStorage, "proof");
    return value ? { "X-Shim-Page": value } : {};
  },
};

/** What the server answers, as JSON. Throws Refused. */
async function ask(method, path, body) {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), ANSWER_MS);
  let status = 0;
  let told = null;
  try {
    const headers = { ...proof.header(), ...(body === undefined ? {} : { "Content-Type": "application/json" }) };
    const answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: stop.signal, cache: "no-store", redirect: "error" });
    status = answer.status;
    told = await answer.json().catch(() => null);
  } catch {
    throw new Refused(0);
  } finally {
    clearTimeout(timer);
  }
  if (status === 401) askForToken();
  if (status >= 400) throw new Refused(status, told);
  return told;
}

/** Takes a stream of server-sent events apart; `heard(event, data, id)` for each. */
class Events {
  constructor(heard) {
    this.heard = heard;
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
      if (this.data.length) this.heard(this.event || "message", this.data.join("\n"), this.id);
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
 * A stream that goes on from its last id whenever it broke, until it is closed. `heard(event, data)` gets each event once,
 * `stands(connected, refused)` what the line is doing. EventSource would do, if it said why it broke and noticed silence.
 * `state`: "open" (it is connected, or tries to be), "resting" (nobody looks: it is parked once its connection has ended),
 * "parked" (nothing more comes until somebody says `again`), "closed" (for good).
 */
class Stream {
  constructor(path, heard, stands) {
    Object.assign(this, { path, heard, stands, last: "", tries: 0, state: "open", stop: null, wake: null });
    this.run();
  }

  async run() {
    while (this.state !== "closed") {
      let refused = new Refused(0);
      try {
        refused = await this.once();
      } catch {
        // The network or the server has gone: the next try says more.
      }
      if (this.state === "closed") return;
      if (this.state === "resting") return this.park();
      if (refused && refused.status === 204) {
        this.heard("bye", {}); // all was seen before the session ended: the server has nothing more to say, not even that
        return this.park();
      }
      if (refused && [400, 401, 403, 404].includes(refused.status)) return this.stands(false, refused);
      this.stands(false, null);
      await this.pause();
      if (this.state === "resting") return this.park();
    }
  }

  /** One connection, to its end. */
  async once() {
    this.stop = new AbortController();
    let timer = setTimeout(() => this.stop.abort(), SILENCE_MS);
    try {
      const headers = { ...proof.header(), Accept: "text/event-stream", ...(this.last ? { "Last-Event-ID": this.last } : {}) };
      const answer = await fetch(this.path, { headers, signal: this.stop.signal, cache: "no-store", redirect: "error" });
      if (answer.status === 401) askForToken();
      if (answer.status === 204) return new Refused(204);
      if (!answer.ok) return new Refused(answer.status, await answer.json().catch(() => null));
      const events = new Events((event, data, id) => {
        if (this.state === "closed") return;
        this.heard(event, JSON.parse(data));
        if (id) this.last = id; // only now: what was not drawn is said again
      });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      this.stands(true, null);
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return null;
        this.tries = 0;
        clearTimeout(timer);
        timer = setTimeout(() => this.stop.abort(), SILENCE_MS);
        events.feed(value);
      }
    } finally {
      clearTimeout(timer);
      this.stop.abort();
    }
  }

  park() {
    this.state = "parked";
    this.stands(true, null);
  }

  pause() {
    const wait = WAITS_MS[Math.min(this.tries, WAITS_MS.length - 1)];
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
  again() {
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
function freshId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 15) | 64;
  bytes[8] = (bytes[8] & 63) | 128;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}
