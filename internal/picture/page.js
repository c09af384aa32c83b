
(() => {
  const at = (id) => document.getElementById(id);
  const rows = at("rows"), filter = at("filter"), silent = at("silent");
  const heads = [...document.querySelectorAll("thead th")];
  let column = -1, down = false;

  const text = (row, i) => row.cells[i].textContent;
  // Without a chosen column, rows keep the order of the report.
  const sort = () => {
    if (column < 0) return;
    const all = [...rows.rows];
    all.sort((a, b) => text(a, column).localeCompare(text(b, column), "en", { numeric: true }) * (down ? -1 : 1));
    rows.append(...all);
  };
  const choose = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows.rows) {
      const whole = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => whole.includes(word));
      if (!row.hidden) shown++;
    }
    at("count").textContent = words.length ? shown + " of " + rows.rows.length + " shown" : "";
  };
  const mark = () => {
    let asked = "";
    try { asked = decodeURIComponent(location.hash.slice(1)); } catch { /* no name of ours */ }
    for (const row of rows.rows) row.classList.toggle("asked", row.id === asked && asked !== "");
    const row = asked && rows.querySelector(".asked");
    if (row && row.hidden) { filter.value = ""; choose(); }
    return row;
  };

  heads.forEach((head, i) => head.firstChild.addEventListener("click", () => {
    down = column === i && !down;
    column = i;
    heads.forEach((h, j) => h.setAttribute("aria-sort", j !== i ? "none" : down ? "descending" : "ascending"));
    sort();
  }));
  filter.addEventListener("input", choose);
  addEventListener("hashchange", () => { const row = mark(); if (row) row.scrollIntoView({ block: "center" }); });
  at("tools").hidden = false;
  mark();

  const parts = ["state", "verdict", "caption", "rows", "picture"];
  const shown = new Map(parts.map((id) => [id, at(id).innerHTML]));
  // Only what is new is taken over: a tooltip stays open, a selection stays, and so do the filter, the order and the focus.
  const takeOver = (id, fresh) => {
    const next = fresh.getElementById(id);
    if (!next || next.innerHTML === shown.get(id)) return;
    shown.set(id, next.innerHTML);
    const focused = document.activeElement && document.activeElement.closest("tr[id]");
    const open = at("others") && at("others").open;
    at(id).replaceChildren(...document.adoptNode(next).childNodes);
    if (id === "verdict" && open && at("others")) at("others").open = true;
    if (id !== "rows") return;
    sort();
    choose();
    mark();
    const again = focused && at(focused.id);
    if (again) again.querySelector("a").focus();
  };
  let heard = new Date();
  const look = async () => {
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(4000) });
      if (!answer.ok) throw new Error(answer.statusText);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const id of parts) takeOver(id, fresh);
      heard = new Date();
      silent.hidden = true;
    } catch {
      silent.textContent = "The daemon does not answer: this is from " + heard.toLocaleTimeString() + ".";
      silent.hidden = false;
    } finally {
      setTimeout(look, 3000);
    }
  };
  if (location.protocol.startsWith("http")) setTimeout(look, 3000);
})();
