"""How the report looks: one style sheet, for light and dark, for desktops and phones."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --surface: #fcfcfb; --panel: #f3f2ee; --ink: #0b0b0b; --text: #52514e; --line: #e1e0d9;
  --own: #2a78d6; --peer: #c2541f; --time: #6d6bb3; --bad: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --surface: #1a1a19; --panel: #242423; --ink: #ffffff; --text: #c3c2b7; --line: #383835;
    --own: #5a9fee; --peer: #f08a4b; --time: #a5a3e6; --bad: #ff8a80;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 68rem; overflow-wrap: anywhere;
  background: var(--surface); color: var(--text); font: 15px/1.5 system-ui, sans-serif;
}
h1, h2, h3, h4, th, dt, summary { color: var(--ink); }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 0.25rem; }
h2 {
  font-size: 1.3rem; margin: 3rem 0 0.25rem; padding-top: 1rem;
  border-top: 1px solid var(--line);
}
h3 { font-size: 1.05rem; margin: 2rem 0 0.5rem; }
h4 { font-size: 0.95rem; margin: 1.25rem 0 0.25rem; }
p { margin: 0.25rem 0 0.75rem; max-width: 46rem; }
.warning { color: var(--bad); font-weight: 600; }
.small, figcaption { font-size: 0.85rem; }
nav a { display: inline-block; margin-right: 1rem; }
a { color: var(--own); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.15rem 1rem; margin: 1rem 0; }
dt { font-weight: 600; }
dd { margin: 0; }
figure { margin: 0.5rem 0 1rem; }
figcaption {
  display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem;
  margin-bottom: 0.4rem;
}

.bars {
  display: grid; gap: 0.3rem 0.75rem;
  grid-template-columns: minmax(8rem, 17rem) 1fr max-content;
}
.bars > * { min-width: 0; align-self: center; }
.bars .name { line-height: 1.25; }
.bars .variant { display: block; font-size: 0.85rem; }
.bars .value { text-align: right; font-variant-numeric: tabular-nums; color: var(--ink); }
.bars .no-bar { grid-column: 2 / 4; font-size: 0.85rem; }
.bars svg, .plot svg { display: block; }
.track { fill: var(--panel); }
.own { fill: var(--own); }
.peer { fill: var(--peer); }
.time { fill: var(--time); }
.key {
  display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.35em; border-radius: 2px;
}
.key.own { background: var(--own); }
.key.peer { background: var(--peer); margin-left: 1em; }
.keys { white-space: nowrap; }

.plot { display: flex; padding-right: 1.5rem; }
.plot .across { flex: 1 1 0; min-width: 0; overflow: visible; }
.plot .down { flex: none; }
.plot text { font: 12px system-ui, sans-serif; fill: var(--text); }
.plot .x { text-anchor: middle; }
.plot .y { text-anchor: end; }
.plot .grid { stroke: var(--line); stroke-width: 1; }
.plot .axis { stroke: var(--text); stroke-width: 1; }
.plot .roof { stroke: var(--peer); stroke-width: 2; }
.plot circle { fill: var(--surface); stroke: var(--own); stroke-width: 1.75; }
.plot .number { text-anchor: middle; font-size: 10px; font-weight: 600; fill: var(--ink); }

table { width: 100%; border-collapse: collapse; font-size: 0.88rem; margin: 0.75rem 0; }
th { overflow-wrap: normal; }
th, td {
  text-align: left; vertical-align: top; padding: 0.3rem 0.6rem 0.3rem 0;
  border-bottom: 1px solid var(--line);
}
th.number, td.number {
  text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums;
}
td.name { color: var(--ink); min-width: 9rem; }
tr.wrong td { color: var(--bad); font-weight: 600; }
details { margin: 0.5rem 0; }
summary { cursor: pointer; font-size: 0.92rem; }
details > *:not(summary) { margin-left: 1rem; }

@media (max-width: 1000px) {
  thead { display: none; }
  table, tbody, tr, td { display: block; }
  tr { border-bottom: 1px solid var(--line); padding: 0.45rem 0; }
  td { border: 0; padding: 0.05rem 0; max-width: 30rem; }
  td { display: flex; gap: 1rem; justify-content: space-between; }
  td::before { content: attr(data-title); color: var(--text); flex: none; }
  td.number, td { text-align: right; }
  td.name { font-weight: 600; text-align: left; }
  td.name::before { content: none; }
  td.none { display: none; }
}
@media (max-width: 640px) {
  body { padding: 1.25rem 0.9rem 3rem; }
  h1 { font-size: 1.4rem; }
  dl { grid-template-columns: 1fr; }
  dd { margin-bottom: 0.4rem; }
  .bars { grid-template-columns: 1fr max-content; gap: 0.1rem 0.6rem; }
  .bars .name { grid-column: 1 / 3; margin-top: 0.45rem; }
  .bars .no-bar { grid-column: 1 / 3; }
  .plot { padding-right: 0.9rem; }
  details > *:not(summary) { margin-left: 0; }
}
@media print { body { max-width: none; } }
"""
