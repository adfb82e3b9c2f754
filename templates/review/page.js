"use strict";
// The step explorer: every number on it is an entry of the planner's own tables (in the page as JSON); this script
// chooses entries and adds them up, it models nothing. Also: tooltips from the charts' own labels, and print.
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("steps").textContent);
  const time = (s) => (s >= 1 ? s.toPrecision(3) + " s" : s * 1e3 >= 100 ? (s * 1e3).toFixed(0) + " ms" : (s * 1e3).toPrecision(3) + " ms");
  const count = (n) => (n >= 100 ? Math.round(n).toLocaleString("en-US") : n.toPrecision(3));
  const tokens = (n) => (n >= 1024 && n % 1024 === 0 ? n / 1024 + "k" : n.toLocaleString("en-US"));

  const root = byId("explorer");
  if (root && data.pools.length) {
    const pool = byId("x-pool"), precision = byId("x-precision"), layout = byId("x-layout"), context = byId("x-context");
    const batch = byId("x-batch"), prefill = byId("x-prefill"), decode = byId("x-decode");
    const options = (select, pairs, chosen) => {
      select.replaceChildren(...pairs.map(([value, text]) => new Option(text, value, false, value === chosen)));
    };
    const here = () => data.pools[pool.selectedIndex];
    const table = () => here().steps.find((s) => s.precision === precision.value && s.layout === layout.value);

    const fillPool = () => {
      const p = here(), planned = p.steps.find((s) => s.key === p.planned);
      options(precision, [...new Set(p.steps.map((s) => s.precision))].map((v) => [v, v + (v === planned.precision ? " (planned)" : "")]), planned.precision);
      fillLayout(planned.layout);
      options(context, planned.contexts.map((c) => [String(c), tokens(c) + (c === p.context ? " (mean)" : "")]), String(p.context));
      (p.role === "prefill" ? prefill : decode).checked = true;
      setRange(p.role === "prefill" ? p.budget : p.running);
    };
    const fillLayout = (wanted) => {
      const p = here(), planned = p.steps.find((s) => s.key === p.planned);
      const layouts = p.steps.filter((s) => s.precision === precision.value).map((s) => s.layout);
      options(layout, layouts.map((l) => [l, l + (l === planned.layout ? " (planned)" : "")]), layouts.includes(wanted) ? wanted : layouts[0]);
    };
    const setRange = (near) => {
      const steps = prefill.checked ? table().chunks : table().batches;
      batch.max = steps.length - 1;
      if (near !== undefined) {
        let best = 0;
        steps.forEach((v, i) => { if (Math.abs(Math.log(v / near)) < Math.abs(Math.log(steps[best] / near))) best = i; });
        batch.value = best;
      } else if (+batch.value > steps.length - 1) batch.value = steps.length - 1;
    };
    const at = (s, i, column) => prefill.checked
      ? { n: s.chunks[i], weights: s.prefill_weights[i], compute: s.prefill_compute[i], kv: s.prefill_attention[i], fixed: s.prefill_fixed[i], total: s.prefill_linear[i] + s.prefill_attention[i] }
      : { n: s.batches[i], weights: s.weights[i], compute: s.compute[i], kv: s.kv[i][column], fixed: s.fixed[i], total: s.linear[i] + s.kv[i][column] };

    const draw = () => {
      const p = here(), s = table(), i = +batch.value, column = s.contexts.indexOf(+context.value), isPrefill = prefill.checked;
      const v = at(s, i, column), holds = s.fits ? s.fits[column] : null;
      const steps = isPrefill ? s.chunks : s.batches;
      let scale = v.total;
      steps.forEach((n, j) => { if (isPrefill || holds === null || n <= Math.max(holds, 8)) scale = Math.max(scale, at(s, j, column).total); });
      for (const part of ["weights", "compute", "kv", "fixed", "total"]) {
        byId("x-fill-" + part).style.width = Math.min(100, (100 * v[part]) / scale).toFixed(2) + "%";
        byId("x-" + part).textContent = time(v[part]);
      }
      byId("x-label-kv").textContent = isPrefill ? "prompt attention" : "KV cache read";
      byId("x-at-word").textContent = isPrefill ? "Prompt tokens in the step" : "Sequences running";
      byId("x-at").textContent = v.n.toLocaleString("en-US");
      const ranks = s.ranks;
      byId("x-user").textContent = isPrefill ? "none" : count(1 / v.total) + "/s";
      byId("x-replica").textContent = count((ranks * v.n) / v.total) + "/s";
      byId("x-gpu").textContent = count((ranks * v.n) / v.total / s.gpus) + "/s";
      byId("x-kind").textContent = isPrefill ? "prompt tokens, one replica" : "tokens, one replica";
      const parts = [["reading weights", v.weights], ["arithmetic", v.compute], [isPrefill ? "prompt attention" : "reading the KV cache", v.kv], ["links, launches and the host", v.fixed]];
      const most = parts.reduce((a, b) => (b[1] > a[1] ? b : a));
      byId("x-bound").textContent = most[0];
      const crossover = isPrefill ? s.prefill_crossover : s.crossover;
      byId("x-crossover").textContent = crossover === null ? "beyond " + steps[steps.length - 1].toLocaleString("en-US") : crossover.toLocaleString("en-US") + (isPrefill ? " tokens" : " sequences");
      byId("x-fits").textContent = holds === null ? "not computed" : holds === 0 ? "none" : holds.toLocaleString("en-US");
      const busy = Math.round((100 * Math.min(v.compute, v.total)) / v.total);
      const first = isPrefill ? "A step with " + v.n.toLocaleString("en-US") + " prompt tokens" : "With " + v.n.toLocaleString("en-US") + (v.n === 1 ? " sequence of " : " sequences of ") + tokens(+context.value) + " tokens a step";
      let says = first + " takes " + time(v.total) + "; the GPU computes for " + busy + "% of it" + (most[0] === "arithmetic" ? "." : ", and waits above all for " + most[0] + ".");
      const tooMany = !isPrefill && holds !== null && v.n > holds;
      if (tooMany) says += " The cache holds only " + holds.toLocaleString("en-US") + " such sequences.";
      if (!isPrefill && p.itl_limit && v.total > p.itl_limit) says += " This is above the ITL limit of " + time(p.itl_limit) + ".";
      byId("x-says").textContent = says;
      byId("x-fits").className = tooMany ? "bad" : "";
      batch.setAttribute("aria-valuetext", v.n + (isPrefill ? " prompt tokens" : " sequences"));
    };

    pool.addEventListener("change", () => { fillPool(); draw(); });
    precision.addEventListener("change", () => { fillLayout(layout.value); setRange(); draw(); });
    for (const e of [layout, context]) e.addEventListener("change", () => { setRange(); draw(); });
    batch.addEventListener("input", draw);
    for (const e of [prefill, decode]) e.addEventListener("change", () => { setRange(prefill.checked ? here().budget : here().running); draw(); });
    fillPool();
    draw();
  }

  // Charts carry a label on every mark (for screen readers); the same text serves as a tooltip.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  document.addEventListener("pointermove", (e) => {
    const mark = e.target instanceof Element ? e.target.closest("figure svg [role='graphics-symbol'][aria-label]") : null;
    const box = mark ? mark.getBoundingClientRect() : null;
    tip.hidden = !mark || box.width > 500;
    if (tip.hidden) return;
    tip.textContent = mark.getAttribute("aria-label").replaceAll(";", " ·");
    tip.style.left = Math.min(e.clientX + 12, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = e.clientY + 16 + "px";
  });
  addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details")) d.open = true; });
})();
