// The page: every field goes to the server as it was typed, and is read there by the parser of the command line.
"use strict";
(function () {
  const byId = (id) => document.getElementById(id);

  function bytes(value) {
    for (const [unit, scale] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["KB", 1e3]]) {
      if (value >= scale) return `${(value / scale).toLocaleString("en", { maximumSignificantDigits: value / scale >= 100 ? 4 : 3 })} ${unit}`;
    }
    return `${Math.round(value)} B`;
  }
  const round = (v) => Number(v.toPrecision(2)).toLocaleString("en");
  const time = (s) => (s >= 1 ? `${s.toFixed(1)} s` : s >= 1e-3 ? `${(s * 1e3).toPrecision(3)} ms` : `${(s * 1e6).toPrecision(3)} µs`);

  async function post(path, content) {
    const response = await fetch(path, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content),
    });
    return [response.ok, await response.json()];
  }

  const charted = {
    fit: (host, found) => charts.fill(host, found.parts, [found.limit], bytes),
    bubble: (host, found) => charts.lines(host, [{ name: "idle", points: found.curve }], {
      title: "idle share against micro-batches", xName: "micro-batches in flight", mark: found.mark,
      x: (v) => Math.round(v), y: (v) => `${Math.round(v * 100)} %`, width: 380,
    }),
    handoff: (host, found) => charts.lines(host, [{ name: "time", points: found.curve }], {
      title: "hand-off time against bandwidth", xName: "GB/s of a port", log: true, mark: null,
      x: (v) => round(v), y: (v) => time(v), width: 380,
    }),
  };

  // One calculator: asked anew as one types, the latest answer shown, what it refuses said beside the field.
  const latest = {};
  async function calculate(id) {
    const form = byId(id), out = byId(`${id}-answer`), note = byId(`${id}-note`), chart = byId(`${id}-chart`);
    const turn = latest[id] = (latest[id] || 0) + 1;
    const fields = {};
    for (const input of form.elements) if (input.name) fields[input.name] = input.value;
    if (id === "kv") form.querySelectorAll("[data-kind]").forEach((label) => { label.hidden = label.dataset.kind !== fields.kind; });
    let ok, found;
    try {
      [ok, found] = await post("api/calc", { calculator: id, fields });
    } catch (problem) {
      [ok, found] = [false, { error: `The planner does not answer (${problem.message}).`, problems: [] }];
    }
    if (turn !== latest[id]) return;
    const left = mark(form, ok ? [] : found.problems, false);
    out.classList.toggle("error", !ok);
    out.textContent = ok ? found.answer : found.problems.length ? left.join(" ") : found.error;
    if (note) note.textContent = ok ? found.note : "";
    if (chart) { if (ok) charted[id](chart, found); else chart.replaceChildren(); }
  }
  for (const id of ["fit", "kv", "bubble", "handoff", "cost"]) {
    let waiting;
    byId(id).addEventListener("submit", (event) => { event.preventDefault(); calculate(id); });
    byId(id).addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => calculate(id), 150); });
    calculate(id);
  }

  document.querySelectorAll("[role=tab]").forEach((tab) => tab.addEventListener("click", () => {
    document.querySelectorAll("[role=tab]").forEach((t) => t.setAttribute("aria-selected", String(t === tab)));
    for (const id of ["calculators", "planner"]) byId(id).hidden = id !== tab.dataset.tab;
  }));

  function option(list, value, text) {
    const node = document.createElement("option");
    node.value = value;
    if (text) node.textContent = text;
    list.append(node);
  }
  async function catalogue() {
    const response = await fetch("api/catalog");
    if (!response.ok) return;
    const found = await response.json();
    for (const model of found.models) option(byId("models"), model.name);
    for (const device of found.accelerators) option(byId("gpus"), device.name);
  }

  function element(name, text, className) {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  }
  function list(host, title, items) {
    if (!items.length) return;
    host.append(element("h3", title));
    const ul = element("ul");
    items.forEach((item) => ul.append(element("li", item)));
    host.append(ul);
  }
  const span = (e, scale, digits) => `${(e.mean * scale).toFixed(digits)} (${(e.low * scale).toFixed(digits)}–${(e.high * scale).toFixed(digits)})`;

  function table(plan) {
    const wrap = element("div", undefined, "scroll"), node = element("table");
    const head = element("tr");
    for (const [name, kind] of [["#", "n"], ["Devices", "n"], ["Design", ""], ["TTFT s", "n"], ["TPOT ms", "n"], ["$/Mtok out", "n"], ["$/hour", "n"]]) {
      head.append(element("th", name, kind));
    }
    node.append(head);
    plan.designs.forEach((d, place) => {
      const row = element("tr", undefined, place === 0 ? "first" : "");
      const money = d.cost ? span(d.cost.usd_per_million_output_tokens, 1, 2) : "no price";
      for (const [text, kind] of [[d.group, "n"], [d.devices, "n"], [d.name, ""], [span(d.ttft_seconds, 1, 2), "n"],
        [span(d.tpot_seconds, 1e3, 0), "n"], [money, "n"], [d.cost ? d.cost.usd_per_hour.toFixed(2) : "", "n"]]) {
        row.append(element("td", text, kind));
      }
      node.append(row);
    });
    wrap.append(node);
    return wrap;
  }

  // Devices counted and no traffic given: how much they carry.
  function showCarried(found) {
    const host = byId("answer");
    host.replaceChildren(element("h2", "What these devices carry"), element("p", found.question.text, "asked"));
    for (const lines of found.inverse) {
      const ul = element("ul");
      for (const line of lines) if (line.startsWith("  ")) ul.append(element("li", line.trim())); else host.append(element("p", line));
      host.append(ul);
    }
    copied(host, "Ask it again", [["On the command line", found.command], ["As a link", location.href]]);
    host.hidden = false;
    host.scrollIntoView({ behavior: "smooth", block: "start" });
  }

  // Users that grow: a row for each month.
  function showGrown(found) {
    const host = byId("answer"), wrap = element("div", undefined, "scroll"), node = element("table"), head = element("tr");
    host.replaceChildren(element("h2", found.growth.feasible ? "Growth by month" : "Nothing serves this"), element("p", found.question.text, "asked"));
    for (const name of ["Month", "Traffic", "Devices", "Servers", "$/hour", "$"]) head.append(element("th", name, "n"));
    node.append(head);
    for (const cells of found.growth.rows) {
      const row = element("tr");
      for (const text of cells) row.append(element("td", text, "n"));
      node.append(row);
    }
    wrap.append(node);
    host.append(wrap, ...found.growth.sentences.map((line) => element("p", line)));
    copied(host, "Ask it again", [["On the command line", found.command], ["As a link", location.href]]);
    host.hidden = false;
    host.scrollIntoView({ behavior: "smooth", block: "start" });
  }

  function show(plan) {
    if (plan.growth) { showGrown(plan); return; }
    if (plan.inverse) { showCarried(plan); return; }
    const host = byId("answer"), why = plan.explanation;
    host.replaceChildren(element("h2", plan.feasible ? "Answer" : "Nothing serves this"));
    host.append(element("p", plan.question.text, "asked"));
    why.summary.forEach((line) => host.append(element("p", line)));
    if (plan.feasible) {
      host.append(table(plan), element("p", "Designs with the same # are too close to call.", "note"));
      host.append(element("h3", "Speed for a user against throughput of a device"));
      const chart = element("div");
      host.append(chart);
      const series = [{ name: "best of all", points: plan.pareto.map((p) => [p.tokens_per_second_user, p.tokens_per_second_device]) }];
      plan.designs.filter((d) => d.curve_user_device.length && !d.prefill_layout).slice(0, 3)
        .forEach((d) => series.push({ name: d.name, points: d.curve_user_device }));
      charts.lines(chart, series, {
        title: "throughput against speed", xName: "tokens a second for a user", log: true,
        x: (v) => round(v), y: (v) => round(v),
      });
    }
    why.prefix.forEach((line) => host.append(element("p", line)));
    list(host, "What would change this answer most", why.levers.map((e) => e.sentence));
    list(host, "What would change it", why.flips.map((f) => f.sentence));
    list(host, "The ladder", why.ladder.map((r) => `${r.rung}. ${r.name}: ${r.verdict}. ${r.reason}`));
    list(host, "What binds", why.binding);
    list(host, "Splitting prefill from decode", why.splitting);
    list(host, "Owning, renting, buying tokens", why.paying);
    list(host, "The other accelerators", why.accelerators);
    list(host, "Rejected", why.rejected);
    list(host, "Mind", why.cautions.map((c) => `${c.topic}: ${c.text}`));
    copied(host, "Run it", plan.emitted.map((e) => [e.name, e.text]));
    copied(host, "Ask it again", [["On the command line", plan.command], ["As a link", location.href]]);
    host.hidden = false;
    host.scrollIntoView({ behavior: "smooth", block: "start" });
  }

  // Texts to copy, each under its name.
  function copied(host, title, texts) {
    if (!texts.length) return;
    host.append(element("h3", title));
    for (const [name, text] of texts) {
      const head = element("p", `${name} `, "note"), button = element("button", "Copy", "copy"), block = element("pre", text);
      button.type = "button";
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(text);
          button.textContent = "Copied";
        } catch (refused) {
          getSelection().selectAllChildren(block);
          button.textContent = "Selected: press Ctrl+C";
        }
      });
      head.append(button);
      host.append(head, block);
    }
  }

  // What is wrong with a field stands beside it, and goes when it is typed in again.
  function mark(form, problems, focus = true) {
    form.querySelectorAll(".problem").forEach((node) => node.remove());
    form.querySelectorAll(".bad").forEach((node) => node.classList.remove("bad"));
    const left = [];
    for (const { field, value, accepted, message } of problems) {
      const input = form.elements[field];
      if (!input) { left.push(message); continue; }
      input.classList.add("bad");
      const closed = input.closest("details:not([open])");
      if (closed) closed.open = true;
      const note = element("span", `${value === "" ? "Nothing typed" : `“${value}” is not understood`}: expected ${accepted}`, "problem");
      note.setAttribute("role", "alert");
      input.after(note);
      input.addEventListener("input", () => { note.remove(); input.classList.remove("bad"); }, { once: true });
    }
    const first = form.querySelector(".bad");
    if (first && focus) first.focus();
    return left;
  }

  function asked(form) {
    const fields = {};
    for (const input of form.elements) {
      if (input.name && input.value.trim() !== "" && !(input.name === "config" && byId("config-field").hidden)) fields[input.name] = input.value.trim();
    }
    return fields;
  }

  async function ask() {
    const form = byId("question"), button = byId("search"), error = byId("plan-error");
    const fields = asked(form);
    const { config, ...shown } = fields;
    history.replaceState(null, "", `?${new URLSearchParams(shown)}#planner`);
    error.textContent = "";
    mark(form, []);
    button.disabled = true;
    button.textContent = "Searching …";
    try {
      const [ok, found] = await post("api/plan", fields);
      if (ok) {
        show(found);
      } else {
        byId("answer").hidden = true;
        error.textContent = found.problems.length ? mark(form, found.problems).join(" ") : found.error;
        if (found.problems.some((p) => p.field === "model")) byId("config-field").hidden = false;
      }
    } catch (problem) {
      error.textContent = `The planner does not answer (${problem.message}). Is "shoal ui" still running?`;
    } finally {
      button.disabled = false;
      button.textContent = "Search";
    }
  }

  byId("question").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  byId("question").elements.model.addEventListener("input", () => { byId("config-field").hidden = true; });

  // The form as a question of these fields; what it has no field for is said, and leaves the form as it was.
  function fill(fields) {
    const form = byId("question"), inputs = [...form.elements].filter((input) => input.name && input.name !== "config");
    // Of the server's own: how much it shows, which changes no question.
    const names = new Set([...inputs.map((input) => input.name), "top", "quick"]);
    const strange = Object.keys(fields).filter((name) => !names.has(name));
    if (strange.length) {
      byId("plan-error").textContent = `This form has no field for ${strange.join(", ")}: shoal plan --file asks it.`;
      return false;
    }
    for (const input of inputs) {
      if (input.name in fields) input.value = fields[input.name];
      else if (input.tagName === "INPUT") input.value = "";
      else input.selectedIndex = 0;
    }
    return true;
  }

  // A question as a file: the fields of the form, each as a quoted text of YAML.
  byId("save").addEventListener("click", () => {
    const { config, ...fields } = asked(byId("question"));
    const lines = Object.entries(fields).map(([name, value]) => `${name}: ${JSON.stringify(value)}\n`);
    const link = element("a");
    link.href = URL.createObjectURL(new Blob(lines, { type: "application/yaml" }));
    link.download = "question.yaml";
    link.click();
    URL.revokeObjectURL(link.href);
  });
  byId("load").addEventListener("click", () => byId("load-file").click());
  byId("load-file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    byId("plan-error").textContent = "";
    const [ok, found] = await post("api/question", { text: await file.text(), name: file.name });
    event.target.value = "";
    if (!ok) byId("plan-error").textContent = found.problems.length ? found.problems.map((p) => p.message).join(" ") : found.error;
    else if (fill(found.asked)) ask();
  });

  // A link carries a question: its fields are filled in, and it is asked.
  const linked = new URLSearchParams(location.search);
  if (linked.has("model")) {
    document.querySelector("[data-tab=planner]").click();
    if (fill(Object.fromEntries(linked))) ask();
  }
  catalogue();
})();
