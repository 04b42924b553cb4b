"""The script of the pages: details of what the pointer or the keyboard is on, zoom, and search in large nets.

It fetches nothing, makes no markup of what a page says, and needs no name from outside. Without it a page shows the
same; what it adds is reached by pointer, touch and keyboard alike.
"""

PAGE_SCRIPT = """
const panel = document.getElementById('detail');
const panelWords = panel.querySelector('p');
const [unfoldButton, closeButton] = panel.querySelectorAll('button');
document.documentElement.classList.add('js');

const closest = (node, selector) => node instanceof Element ? node.closest(selector) : null;
const titleOf = item => item.querySelector('title').textContent;
const isShown = element => element.getClientRects().length > 0;

// The wires of an operator, or the other parts of what crosses, are drawn in another colour.
function light(item) {
  for (const one of document.querySelectorAll('.lit')) one.classList.remove('lit');
  const figure = item && item.closest('svg.figure');
  if (!figure) return;
  const node = item.closest('[data-node]');
  for (const edge of figure.querySelectorAll('[data-edge]')) {
    const ends = edge.dataset.edge;
    if (node ? ends.split(' ').includes(node.dataset.node) : ends === item.dataset.edge) edge.classList.add('lit');
  }
}
let shown = null;
function show(words, item) {
  panelWords.textContent = words;
  panel.hidden = false;
  shown = item;
  unfoldButton.hidden = !findUnfolded(item);
  light(item);
}
function hide() {
  panel.hidden = true;
  light(null);
}
closeButton.addEventListener('click', hide);

// The same operator in the map that has all layers, of one that stands for several.
function findUnfolded(item) {
  const fold = closest(item, '[data-copies]') && item.closest('.card').querySelector('details.unfold');
  return fold && fold.querySelector('[data-op="' + CSS.escape(item.dataset.op) + '"]');
}
function unfold(item) {
  const other = findUnfolded(item);
  other.closest('details').open = true;
  other.focus();
  other.scrollIntoView({block: 'center', inline: 'center'});
}
unfoldButton.addEventListener('click', () => unfold(shown));

document.addEventListener('focusin', event => {
  const item = closest(event.target, 'svg.figure .item');
  const figure = closest(event.target, 'svg.figure');
  if (item) show(titleOf(item), item);
  else if (figure && figure.matches(':focus-visible'))
    show(figure.querySelector('desc').textContent + '\\nArrow keys go through its parts; + and - zoom.', null);
  else if (!panel.contains(event.target)) hide();
});
document.addEventListener('click', event => {
  const item = closest(event.target, 'svg.figure .item');
  if (item) { item.focus({preventScroll: true}); show(titleOf(item), item); }
  else if (!closest(event.target, '#detail, .tools')) hide();
});
document.addEventListener('pointerover', event => {
  if (panel.hidden) light(closest(event.target, 'svg.figure .item'));
});

// The next part in a direction: near along it, and not far aside.
function findBeside(items, from, down) {
  const middle = item => {
    const box = item.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
  };
  const [x, y] = middle(from);
  let best = null, least = Infinity;
  for (const item of items) {
    const [a, b] = middle(item);
    const along = (b - y) * down, far = along + 3 * Math.abs(a - x);
    if (along > 4 && far < least) { best = item; least = far; }
  }
  return best;
}
// Its parts in the order in which they are read: machines, operators, then what crosses.
function listItems(figure) {
  const kinds = ['[data-machine]', '[data-op]', ':not([data-machine], [data-op])'];
  return kinds.flatMap(kind => [...figure.querySelectorAll('.item' + kind)]);
}
function move(figure, from, key) {
  const items = listItems(figure);
  const at = items.indexOf(from);
  if (key === 'Home') return items[0];
  if (key === 'End') return items[items.length - 1];
  if (at < 0) return items[0];
  if (key === 'ArrowRight') return items[at + 1];
  if (key === 'ArrowLeft') return items[at - 1];
  return findBeside(items, from, key === 'ArrowDown' ? 1 : -1);
}
document.addEventListener('keydown', event => {
  if (event.key === 'Escape') hide();
  const box = closest(event.target, 'input[type=search]');
  if (box && event.key === 'Enter') { event.preventDefault(); showMatch(box); }
  const figure = closest(event.target, 'svg.figure');
  if (!figure || event.ctrlKey || event.metaKey || event.altKey) return;
  const item = closest(event.target, '.item');
  if (/^(Arrow|Home$|End$)/.test(event.key)) {
    const next = move(figure, item, event.key);
    if (next) { next.focus(); next.scrollIntoView({block: 'nearest', inline: 'nearest'}); }
  } else if (event.key === 'Enter' && findUnfolded(item)) {
    unfold(item);
  } else if (item && (event.key === 'Enter' || event.key === ' ')) {
    if (panel.hidden) show(titleOf(item), item); else hide();
  } else if ('+=-0'.includes(event.key)) zoom(closest(figure, '.card'), {'-': 0.8, 0: 0}[event.key] ?? 1.25);
  else return;
  event.preventDefault();
});

// factor: 0 is back to the size that it had
function zoom(card, factor) {
  for (const figure of [...card.querySelectorAll('svg.figure')].filter(isShown)) {
    const base = Number(figure.dataset.base ??= figure.getBoundingClientRect().width);
    const scale = factor ? Math.min(Math.max(Number(figure.dataset.zoom ?? 1) * factor, 0.2), 5) : 1;
    figure.dataset.zoom = scale;
    figure.style.width = factor ? base * scale + 'px' : '';
    figure.style.minWidth = figure.style.maxWidth = factor ? 'none' : '';
  }
}
document.addEventListener('click', event => {
  const button = closest(event.target, 'button[data-zoom]');
  if (button) zoom(button.closest('.card'), Number(button.dataset.zoom));
});

// Operators whose details have the words; what is folded is unfolded, so that it can be seen.
function find(box) {
  const card = box.closest('.card'), words = box.value.trim().toLowerCase();
  const fold = card.querySelector('details.unfold');
  if (fold && words) fold.open = true;
  const matches = [];
  const figures = [...(fold ?? card).querySelectorAll('svg.figure')];
  for (const item of figures.flatMap(figure => [...figure.querySelectorAll('[data-op]')])) {
    const fits = words && titleOf(item).toLowerCase().includes(words);
    item.classList.toggle('hit', Boolean(fits));
    item.classList.toggle('dim', Boolean(words && !fits));
    if (fits && isShown(item)) matches.push(item);
  }
  const said = matches.length + (matches.length === 1 ? ' operator' : ' operators');
  card.querySelector('.tools output').textContent = words && said + (matches.length ? '; Enter shows the next' : '');
  return matches;
}
function showMatch(box) {
  const matches = find(box);
  if (!matches.length) return;
  const at = Number(box.dataset.at ?? -1) + 1;
  box.dataset.at = at % matches.length;
  const item = matches[at % matches.length];
  item.scrollIntoView({block: 'center', inline: 'center'});
  show(titleOf(item), item);
}
document.addEventListener('input', event => {
  const box = closest(event.target, 'input[type=search]');
  if (box) { delete box.dataset.at; find(box); }
});

// Replaces what parts of the page show; what a reader has opened, scrolled or stands on stays so. All is read before
// anything is written: so the page is laid out once.
function replaceParts(parts) {
  const list = place => [...place.querySelectorAll('.item, svg.figure, .scroll, summary, input, button')];
  const states = parts.map(([place, markup]) => ({
    place, markup,
    at: place.contains(document.activeElement) ? list(place).indexOf(document.activeElement) : -1,
    open: [...place.querySelectorAll('details')].map(one => one.open),
    left: [...place.querySelectorAll('.scroll')].map(one => one.scrollLeft),
  }));
  for (const {place, markup} of states) { place.innerHTML = markup; }
  for (const {place, at, open, left} of states) {
    place.querySelectorAll('details').forEach((one, i) => { if (i < open.length) one.open = open[i]; });
    place.querySelectorAll('.scroll').forEach((one, i) => { if (left[i]) one.scrollLeft = left[i]; });
    if (at >= 0) list(place)[at]?.focus({preventScroll: true});
  }
}
"""
