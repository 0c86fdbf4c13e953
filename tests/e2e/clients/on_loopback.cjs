// Servers that would listen on every address listen on this machine's own.
const { Server } = require("node:net");
const { listen } = Server.prototype;
Server.prototype.listen = function (port, ...rest) {
  return listen.call(this, port, "127.0.0.1", ...rest.filter((one) => typeof one === "function"));
};
