// Asks the daemon once a second while the page is visible, and shows the answer. Texts are only ever set as text.

import { cells, history, meter, setMeter } from "./charts.js";

const POLL_MS = 1000;
const POINTS = 300;
const SORTS = ["rank", "wait", "rate"];
const THEMES = ["system", "light", "dark"];

const $ = (id) => document.getElementById(id);
const state = { since: 0, began: -1, paused: false, sort: "rank", filter: "", theme: 0, view: null };
const histories = new Map(); // of each rank, by job and rank
const shown = new Map(); // tiles of bad samples, by id

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

// ---------------------------------------------------------------- asking

async function ask() {
  if (state.paused || document.hidden) return;
  try {
    const answer = await fetch(`view.json?since=${state.since}`, { cache: "no-store" });
    if (!answer.ok) throw new Error((await answer.text()) || answer.statusText);
    take(await answer.json());
    live(state.paused ? "paused" : "live", state.paused ? "paused" : "");
  } catch (error) {
    live(error instanceof TypeError ? "the daemon does not answer; trying again" : error.message, "lost");
  }
}

function live(text, kind) {
  if ($("live").textContent !== text) $("live").textContent = text;
  $("live").className = kind;
}

function take(view) {
  if (view.began !== state.began || view.number < state.since) histories.clear();
  const names = new Set();
  for (const rank of view.ranks) {
    const name = `${view.jobs[rank.job].name} ${rank.rank}`;
    names.add(name);
    const known = histories.get(name) ?? { waits: [], rates: [] };
    if (view.number !== state.since || !known.waits.length) {
      known.waits = known.waits.concat(rank.waits).slice(-POINTS);
      known.rates = known.rates.concat(rank.rates).slice(-POINTS);
    }
    histories.set(name, known);
  }
  for (const name of histories.keys()) if (!names.has(name)) histories.delete(name);
  state.since = view.number;
  state.began = view.began;
  state.view = view;
  render();
}

// ---------------------------------------------------------------- showing

function render() {
  const view = state.view;
  if (!view) return;
  document.title = `${view.host ? `${view.host} · ` : ""}feedd`;
  $("host").textContent = view.host;
  const lanes = view.lane_count > 1 ? ` · ${view.lane_count} lanes` : "";
  $("about").textContent = `${view.state} · up ${view.uptime} · ${view.version}${lanes}`;
  $("limits").textContent = view.private ? "" : "Names of data, log lines and bad samples are shown at the address with the token: feedd top --url prints it.";
  showVerdict(view);
  showPath(view.stages);
  showJobs(view);
  showRanks(view);
  showCache(view.cache);
  showLog(view);
  showSamples(view);
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function showVerdict(view) {
  const found = view.verdict;
  const kind = found === null ? "" : view.limits ? "limits" : "fine";
  const lines = [];
  if (found === null) {
    lines.push(element("h2", {}, sentence(view.waiting)), element("p", {}, "Trainers tell once a second what they do."));
  } else {
    lines.push(element("h2", {}, found.job ? `${found.job}: ${found.title}` : sentence(found.title), element("code", {}, found.id)));
    lines.push(element("p", {}, found.advice));
    const more = [found.knob && `Turn ${found.knob}`, found.gain, found.behind && `then ${found.behind} limits`];
    const text = more.filter(Boolean).join("; ");
    if (text) lines.push(element("p", {}, element("strong", {}, text)));
  }
  if ($("verdict").className !== kind) $("verdict").className = kind;
  // Screen readers say what changes here, so nothing is replaced by its equal.
  const next = lines.map((line) => line.textContent).join("\n");
  if ($("verdict").dataset.text !== next) {
    $("verdict").dataset.text = next;
    $("verdict").replaceChildren(...lines);
  }
}

function showPath(stages) {
  const list = $("path");
  while (list.children.length < stages.length) {
    list.append(element("li", {}, element("h3"), element("div", { class: "rate" }, "", element("small")),
      element("p", { class: "says" }), meter(null, ""), element("p", { class: "detail" })));
  }
  stages.forEach((stage, number) => {
    const box = list.children[number];
    box.className = [stage.limits ? "limits" : "", stage.rate && stage.rate !== "idle" ? "flows" : ""].join(" ").trim();
    box.querySelector("h3").textContent = stage.name;
    const rate = box.querySelector(".rate");
    rate.replaceChildren(stage.rate || "–", element("small", {}, stage.unit));
    box.querySelector(".says").textContent = stage.level_text || stage.detail || " ";
    box.querySelector(".detail").textContent = (stage.level_text && stage.detail) || " ";
    setMeter(box.querySelector(".meter"), stage.level, `${stage.name}: ${stage.level_text || "not known"}`);
    if (stage.limits) box.setAttribute("aria-current", "true");
    else box.removeAttribute("aria-current");
  });
}

function matches(...texts) {
  return !state.filter || texts.some((text) => text.toLowerCase().includes(state.filter));
}

function percent(share) {
  return `${Math.round(100 * share)} %`;
}

function figure(value, label, kind = "") {
  return element("div", { class: "figure" }, element("b", { class: kind }, value), element("p", {}, label));
}

function showJobs(view) {
  const cards = view.jobs.filter((job) => matches(job.name, job.owner, ...job.urls)).map((job) => {
    const ranks = job.world_size > 1 ? `${job.rank_count} of ${job.world_size} ranks here` : "1 rank";
    const about = [job.owner, ranks, job.cached === null ? "" : `${percent(job.cached)} of its data cached`];
    const step = job.steps ? `step ${job.step.toLocaleString("en")} of ${job.steps.toLocaleString("en")}` : `step ${job.step.toLocaleString("en")}`;
    const ends = job.eta ? `ends in ${job.eta}` : "";
    const progress = element("div", {}, element("p", {}, [`epoch ${job.epoch}`, step, ends].filter(Boolean).join(" · ")));
    if (job.progress !== null) progress.append(meter(job.progress, `epoch ${job.epoch}: ${percent(job.progress)}`));
    const wait = figure(percent(job.wait), "waits", job.wait >= 0.3 ? "much" : "");
    return element("article", { class: "job" },
      element("div", { title: job.urls.join("\n") }, element("h3", {}, job.name), element("p", {}, about.filter(Boolean).join(" · "))),
      progress, figure(rounded(job.batches_per_s), "batches/s"), figure(rounded(job.samples_per_s), "samples/s"), wait);
  });
  $("jobs").replaceChildren(...(cards.length ? cards : [element("p", { class: "empty" }, view.jobs.length ? "No job has this text." : "No job is running.")]));
}

function rounded(number) {
  return number >= 100 ? Math.round(number).toLocaleString("en") : number.toFixed(1);
}

function showRanks(view) {
  const chosen = view.ranks.filter((rank) => {
    const job = view.jobs[rank.job];
    return matches(job.name, job.owner, ...job.urls);
  });
  const orders = {
    rank: (one, other) => one.job - other.job || one.rank - other.rank,
    wait: (one, other) => other.wait - one.wait || orders.rank(one, other),
    rate: (one, other) => one.batches_per_s - other.batches_per_s || orders.rank(one, other),
  };
  chosen.sort(orders[state.sort]);
  const several = view.jobs.length > 1;
  const tiles = chosen.map((rank) => {
    const job = view.jobs[rank.job].name;
    const known = histories.get(`${job} ${rank.rank}`) ?? { waits: [], rates: [] };
    const name = several ? `rank ${rank.rank} of ${job}` : `rank ${rank.rank}`;
    const title = several ? [element("b", {}, String(rank.rank)), element("span", { class: "of" }, ` ${job}`)] : [element("b", {}, name)];
    const label = `${name}: waits ${percent(rank.wait)}, ${rounded(rank.batches_per_s)} batches per second, ${rank.state}`;
    const facts = [rank.state, `${rank.ready} ready, ${rank.leased} leased of ${rank.slots} slots`, rank.device].filter(Boolean);
    return element("li", { class: "rank", title: facts.join("\n"), "aria-label": label },
      element("p", {}, element("span", {}, ...title), element("b", { class: rank.wait >= 0.3 ? "much" : "" }, percent(rank.wait))),
      history(known.waits, known.rates, Math.max(60, known.waits.length)),
      element("p", {}, element("span", {}, rank.state), `${rounded(rank.batches_per_s)}/s`));
  });
  $("ranks").className = tiles.length <= 6 ? "few" : tiles.length > 16 ? "many" : "";
  $("ranks").replaceChildren(...tiles);
}

function showCache(cache) {
  $("cache-text").textContent = cache.limit_bytes ? cache.text : "none";
  if (!cache.limit_bytes) return $("cache").replaceChildren();
  const rows = cache.folders.map((folder, number) => {
    if (!matches(folder.url)) return null;
    const used = folder.pinned_bytes ? `, ${percent(folder.pinned_bytes / folder.size_bytes)} in use` : "";
    return element("li", {}, element("i", { class: `hue-${Math.min(5, number)}` }), element("span", {}, folder.url || "all others"),
      element("span", {}, `${folder.text}, ${folder.entry_count.toLocaleString("en")} shards${used}`));
  });
  if (cache.arriving_bytes) rows.push(element("li", {}, element("i", { class: "arriving" }), element("span", {}, "arriving"), element("span")));
  rows.push(element("li", {}, element("i", { class: "free" }), element("span", {}, "free"), element("span", {}, "paler cells are not in use")));
  const narrow = window.matchMedia("(max-width: 40rem)").matches;
  $("cache").replaceChildren(cells(cache, narrow ? 30 : 50, narrow ? 10 : 8), element("ul", {}, ...rows));
}

function showLog(view) {
  $("log-section").hidden = !view.private;
  const lines = view.log.filter((line) => matches(line.text)).map((line) =>
    element("li", {}, element("time", {}, line.age), element("span", { class: line.level }, line.level),
      element("span", { class: "text" }, line.text), element("span", { class: "times" }, line.count > 1 ? `${line.count} times` : "")));
  $("log").hidden = !lines.length;
  $("log-title").textContent = lines.length ? "Warnings and errors" : "No warnings and errors";
  $("log").replaceChildren(...lines);
}

// ---------------------------------------------------------------- bad samples

function showSamples(view) {
  $("samples-section").hidden = !view.private || !view.bad_sample_count;
  const latest = view.bad_samples.length < view.bad_sample_count ? `, the latest ${view.bad_samples.length} of them here` : "";
  $("samples-text").textContent = `${view.bad_sample_count.toLocaleString("en")} times since the start${latest}`;
  const chosen = view.bad_samples.filter((one) => matches(one.url, one.key, one.reason));
  for (const id of shown.keys()) if (!chosen.some((one) => one.id === id)) shown.delete(id);
  const tiles = chosen.map((one) => {
    if (!shown.has(one.id)) shown.set(one.id, tile(one));
    return shown.get(one.id);
  });
  const list = $("samples");
  // Pictures are loaded once: tiles move only when their order changes.
  if (tiles.length !== list.children.length || tiles.some((one, number) => list.children[number] !== one)) {
    const ordered = [...tiles].sort((one, other) => Number(other.dataset.number) - Number(one.dataset.number));
    if (ordered.some((one, number) => list.children[number] !== one) || tiles.length !== list.children.length) list.replaceChildren(...ordered);
  }
}

// Bytes are asked for when their tile is seen. What is no picture arrives as a dump in text.
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((one) => one.isIntersecting)) {
    seen.unobserve(entry.target);
    load(entry.target);
  }
}, { rootMargin: "20%" });

async function load(shot) {
  const { id, name } = shot.dataset;
  const answer = await fetch(`samples/${id}`).catch(() => null);
  if (!answer || !answer.ok) return shot.replaceChildren(element("pre", {}, "its shard is not in the cache any more"));
  if (!answer.headers.get("content-type").startsWith("image/")) {
    return shot.replaceChildren(element("pre", {}, await answer.text()));
  }
  const image = element("img", { alt: name, src: URL.createObjectURL(await answer.blob()) });
  image.addEventListener("load", () => URL.revokeObjectURL(image.src));
  image.addEventListener("error", async () => {
    const text = await fetch(`samples/${id}.txt`).catch(() => null);
    shot.replaceChildren(element("pre", {}, text && text.ok ? await text.text() : "no browser can show this"));
  });
  shot.replaceChildren(image);
}

function picture(one) {
  const shot = element("div", { class: "shot", "data-id": one.id, "data-name": `${one.key}, field ${one.field}` });
  seen.observe(shot);
  return shot;
}

function tile(one) {
  const button = element("button", { type: "button" }, picture(one),
    element("div", { class: "about" }, element("b", {}, `${one.key} · ${one.field}`), element("span", {}, `${one.outcome}: ${one.reason}`)));
  button.addEventListener("click", () => openSample(one));
  const made = element("li", {}, button);
  made.dataset.number = one.id.split("-")[1];
  return made;
}

function openSample(one) {
  $("sample-title").textContent = one.key;
  const facts = [["field", one.field], ["shard", one.url], ["why", one.reason], ["outcome", one.outcome], ["epoch", String(one.epoch)]];
  const list = element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  $("sample-body").replaceChildren(picture(one), list);
  $("sample").showModal();
}

// ---------------------------------------------------------------- keys and buttons

function sortBy(sort) {
  state.sort = sort;
  for (const button of $("sorts").children) button.setAttribute("aria-pressed", String(button.dataset.sort === sort));
  render();
}

function pause() {
  state.paused = !state.paused;
  $("pause").setAttribute("aria-pressed", String(state.paused));
  live(state.paused ? "paused" : "live", state.paused ? "paused" : "");
}

function theme() {
  state.theme = (state.theme + 1) % THEMES.length;
  const name = THEMES[state.theme];
  if (state.theme) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  $("theme").textContent = `theme: ${name}`;
}

const KEYS = {
  s: () => sortBy(SORTS[(SORTS.indexOf(state.sort) + 1) % SORTS.length]),
  p: pause,
  t: theme,
  "?": () => $("help").showModal(),
  "/": () => $("filter").focus(),
};

document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLInputElement;
  if (typing && event.key === "Escape") {
    $("filter").value = state.filter = "";
    $("filter").blur();
    render();
  }
  const plain = !typing && !event.ctrlKey && !event.metaKey && !event.altKey && !document.querySelector("dialog[open]");
  if (plain && KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
});
$("sorts").addEventListener("click", (event) => event.target.dataset.sort && sortBy(event.target.dataset.sort));
$("pause").addEventListener("click", pause);
$("theme").addEventListener("click", theme);
$("keys").addEventListener("click", () => $("help").showModal());
$("filter").addEventListener("input", () => {
  state.filter = $("filter").value.trim().toLowerCase();
  render();
});
document.addEventListener("visibilitychange", ask);
setInterval(ask, POLL_MS);
ask();
