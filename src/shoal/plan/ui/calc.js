// The calculators of shoal.plan.calc, formula for formula. Bytes are decimal: 80 GB is 80e9.
"use strict";
(function (root) {
  const CLOSE = 0.005;

  class Refused extends Error {
    constructor(field, accepted) { super(`${field}: ${accepted}`); this.field = field; }
  }
  function positive(field, value, limit = Infinity, zero = false) {
    const fine = Number.isFinite(value) && (value > 0 || (zero && value === 0)) && value <= limit;
    if (!fine) throw new Refused(field, zero ? "zero or more" : "a number greater than zero");
    return value;
  }
  function whole(field, value, limit) {
    if (!Number.isInteger(value) || value < 1 || value > limit) throw new Refused(field, `a whole number from 1 to ${limit}`);
    return value;
  }
  function share(field, value) {
    if (!(value >= 0 && value < 1)) throw new Refused(field, "a share from 0 up to, not including, 1");
    return value;
  }

  const calc = {
    Refused,
    weightBytes: (parameters, bytes) => positive("parameters", parameters, 1e15) * positive("bytes", bytes, 8),
    gqaBytesPerToken: (layers, kvHeads, headDim, element) =>
      2 * whole("layers", layers, 100000) * whole("KV heads", kvHeads, 100000) * whole("head width", headDim, 100000) *
      positive("element", element, 8),
    mlaBytesPerToken: (layers, latent, rope, element) =>
      whole("layers", layers, 100000) * (whole("latent", latent, 1e6) + whole("rope", rope, 100000)) * positive("element", element, 8),
    kvBytes: (perToken, context, users) =>
      positive("bytes a token", perToken, 1e12) * positive("context", context, 1e8) * positive("users", users, 1e9),
    devicesNeeded(total, device, headroom) {
      const exact = positive("total", total, 1e18) / (positive("memory", device, 1e18) * (1 - share("headroom", headroom)));
      const near = Math.round(exact);
      if (near >= 1 && Math.abs(exact - near) <= CLOSE) return { exact, count: near + 1, tooClose: true };
      return { exact, count: Math.ceil(exact), tooClose: false };
    },
    bubble: (stages, microBatches) =>
      (whole("stages", stages, 100000) - 1) / (whole("micro-batches", microBatches, 1e9) + stages - 1),
    handoffSeconds: (bytes, bandwidth, ports, efficiency, layers) => {
      if (!(efficiency > 0 && efficiency <= 1)) throw new Refused("efficiency", "a share above 0 and at most 1");
      return positive("cache", bytes, 1e18) / whole("layers streamed", layers, 100000) /
        (positive("bandwidth", bandwidth, 1e15) * whole("ports", ports, 100000) * efficiency);
    },
    costPerDay: (devices, price) => positive("devices", devices, 1 << 20) * 24 * positive("price", price, 100000),
    costPerMillion: (devices, price, tokensPerSecond, utilization) => {
      if (!(utilization > 0 && utilization <= 1)) throw new Refused("utilization", "a share above 0 and at most 1");
      return positive("devices", devices, 1 << 20) * positive("price", price, 100000) /
        (positive("tokens a second", tokensPerSecond, 1e12) * 3600) * 1e6 / utilization;
    },
  };
  root.calc = calc;
})(typeof window === "undefined" ? globalThis : window);
