"use strict";
// Filters, sorts and pages the table of points, and copies commands. Everything else of the page works without it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { columns, rows, size } = data;
  const body = document.querySelector("#table tbody");
  const heads = [...document.querySelectorAll("#table thead th[data-kind]")];
  const words = document.getElementById("words");
  const marks = [...document.querySelectorAll("input[name=mark]")];
  const shown = document.getElementById("shown");
  const [before, after] = ["before", "after"].map((id) => document.getElementById(id));
  const said = document.getElementById("said");
  const numeric = new Set(["number", "bytes", "seconds"]);
  const texts = rows.map((row) => row.v.map((value) => (value === null ? "" : String(value))).join(" ").toLowerCase());
  let found = rows.map((_, place) => place);
  let sorted = null; // [column, ascending]
  let first = 0;

  const binary = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
  function bytes(count) {
    const unit = binary.find(([unit]) => Math.abs(count) >= unit);
    return unit ? `${(count / unit[0]).toFixed(2)} ${unit[1]}` : `${count} byte${count === 1 ? "" : "s"}`;
  }
  function text(value, kind) {
    if (value === null) return "–";
    if (kind === "bytes") return bytes(value);
    return kind === "seconds" ? value.toFixed(2) : String(value);
  }
  function breakable(words) { // long ones after the signs in them, and not within a name or a value
    return words.split(" ").flatMap((word, place) => {
      const pieces = word.length > 10 ? word.match(/[^.=,/_]+[.=,/_]*|[.=,/_]+/g) : [word];
      const broken = pieces.flatMap((piece, at) => (at ? [document.createElement("wbr"), piece] : [piece]));
      return place ? [" ", ...broken] : broken;
    });
  }
  function cell(row, place) {
    const { kind, label } = columns[place];
    const value = row.v[place];
    const td = document.createElement("td");
    td.dataset.label = label;
    if (kind === "mark") {
      const span = td.appendChild(document.createElement("span"));
      span.className = "with";
      const shape = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      shape.setAttribute("class", `shape ${value}`);
      shape.setAttribute("aria-hidden", "true");
      shape.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "use")).setAttribute("href", `#mark-${value}`);
      span.append(shape, ` ${value}`);
      return td;
    }
    const partial = row.p && kind === "bytes" && label.startsWith("peak") && value !== null;
    if (numeric.has(kind)) td.textContent = (partial ? "≥ " : "") + text(value, kind);
    else td.append(...breakable(text(value, kind)));
    td.classList.toggle("num", numeric.has(kind));
    td.classList.toggle("none", value === null);
    return td;
  }
  function draw() {
    const page = found.slice(first, first + size);
    body.replaceChildren(...page.map((place, line) => {
      const tr = document.createElement("tr");
      tr.append(...columns.map((_, column) => cell(rows[place], column)));
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.dataset.row = place;
      const more = document.createElement("span");
      more.className = "sr";
      more.textContent = ` the command of row ${first + line + 1}`;
      button.append("Copy", more);
      const again = tr.appendChild(document.createElement("td"));
      again.className = "again";
      again.appendChild(button);
      return tr;
    }));
    const count = (number) => number.toLocaleString("en");
    const range = found.length > size ? `${count(first + 1)}–${count(Math.min(first + size, found.length))} of ` : "";
    shown.textContent = `${range}${count(found.length)} point${found.length === 1 ? "" : "s"}` +
      (found.length < rows.length ? `, ${count(rows.length - found.length)} filtered out` : "");
    before.disabled = first === 0;
    after.disabled = first + size >= found.length;
  }
  function matches(place, wanted, kept) {
    const row = rows[place];
    if (!kept.has(row.v[0])) return false;
    return wanted.every((word) => {
      const at = word.indexOf("=");
      const column = at > 0 ? columns.findIndex((each) => each.label.toLowerCase() === word.slice(0, at)) : -1;
      if (column < 0) return texts[place].includes(word);
      return String(row.v[column] ?? "").toLowerCase() === word.slice(at + 1);
    });
  }
  function choose() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = new Set(marks.filter((mark) => mark.checked).map((mark) => mark.value));
    found = rows.map((_, place) => place).filter((place) => matches(place, wanted, kept));
    if (sorted) {
      const [column, ascending] = sorted;
      const isNumber = numeric.has(columns[column].kind);
      found.sort((one, other) => {
        const [a, b] = [rows[one].v[column], rows[other].v[column]];
        if (a === null || b === null) return (a === null) - (b === null); // what is not known comes last
        const order = isNumber ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
        return ascending ? order : -order;
      });
    }
    first = 0;
    draw();
  }
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const ascending = !(sorted && sorted[0] === column && sorted[1]);
    sorted = [column, ascending];
    heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    choose();
  }));
  addEventListener("beforeprint", () => document.querySelectorAll(".failure").forEach((each) => { each.open = true; }));
  words.addEventListener("input", choose);
  words.form.addEventListener("submit", (event) => event.preventDefault());
  marks.forEach((mark) => mark.addEventListener("change", choose));
  before.addEventListener("click", () => { first = Math.max(0, first - size); draw(); });
  after.addEventListener("click", () => { first += size; draw(); });

  function selected(element) { // a browser that gives no clipboard to a file
    const range = document.createRange();
    range.selectNodeContents(element);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    return document.execCommand("copy");
  }
  body.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const code = document.querySelector("#command code");
    code.textContent = data.commands[button.dataset.row];
    let copied = false;
    try {
      await navigator.clipboard.writeText(code.textContent);
      copied = true;
    } catch {
      copied = selected(code);
    }
    said.textContent = copied ? "Copied." : "Not copied: the command is below the table.";
    button.firstChild.textContent = copied ? "Copied" : "See below";
    setTimeout(() => { button.firstChild.textContent = "Copy"; }, 2000);
  });
})();
