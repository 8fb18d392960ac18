// Small drawings, made of SVG elements. Nothing here reads the network or the page.

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A bar for a share from 0 to 1. It is changed in place, so that the change can be animated.
export function meter(share, label) {
  const fill = svg("rect", { class: "fill", height: 10, width: 0 });
  const bar = svg("svg", { class: "meter", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img" },
    svg("rect", { class: "track", width: 100, height: 10 }), fill);
  setMeter(bar, share, label);
  return bar;
}

export function setMeter(bar, share, label) {
  bar.querySelector(".fill").setAttribute("width", share === null ? 0 : Math.round(1000 * Math.min(1, share)) / 10);
  bar.setAttribute("aria-label", label);
}

// The wait of a rank as an area from 0 to 100 %, and its rate as a line on a scale of its own.
export function history(waits, rates, points) {
  const most = Math.max(...rates, 1e-9) * 1.15;
  const x = (at) => round((at / Math.max(1, points - 1)) * 100);
  const first = points - waits.length;
  const area = waits.map((wait, at) => `${x(first + at)},${round(40 - 40 * Math.min(1, wait))}`);
  const line = rates.map((rate, at) => `${x(first + at)},${round(40 - (40 * rate) / most)}`);
  const drawn = svg("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", "aria-hidden": "true" });
  drawn.append(svg("line", { class: "base", x1: 0, x2: 100, y1: 39.5, y2: 39.5 }));
  if (waits.length > 1) {
    drawn.append(svg("path", { class: "wait-area", d: `M${x(first)},40L${area.join("L")}L100,40Z` }));
    drawn.append(svg("polyline", { class: "rate-line", points: line.join(" ") }));
  }
  return drawn;
}

// The cache as cells of equal size: first what is held, folder by folder, then what arrives, then what is free.
export function cells(cache, columns, rows) {
  const count = columns * rows;
  const drawn = svg("svg", { viewBox: `0 0 ${columns} ${rows}`, role: "img", "aria-label": `Cache: ${cache.text}` });
  const kinds = [];
  const take = (bytes, kind) => {
    const wanted = Math.min(count - kinds.length, Math.round((bytes / cache.limit_bytes) * count) || (bytes ? 1 : 0));
    for (let cell = 0; cell < wanted; cell++) kinds.push(kind);
  };
  cache.folders.forEach((folder, number) => {
    take(folder.pinned_bytes, `hue-${Math.min(5, number)}`);
    take(folder.size_bytes - folder.pinned_bytes, `hue-${Math.min(5, number)} idle`);
  });
  take(cache.arriving_bytes, "arriving");
  while (kinds.length < count) kinds.push("free");
  kinds.forEach((kind, cell) => {
    const [x, y] = [Math.floor(cell / rows), cell % rows];
    drawn.append(svg("rect", { class: kind, x: x + 0.08, y: y + 0.08, width: 0.84, height: 0.84, rx: 0.18 }));
  });
  return drawn;
}

function round(number) {
  return Math.round(number * 100) / 100;
}
