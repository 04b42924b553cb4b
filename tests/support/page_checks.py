"""What is wrong with a page in a real browser: labels that are not legible, and what axe-core finds."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from browser import Browser

WIDTHS = (1440, 390)  # of a screen, and of a phone

# Labels that are small, cut off, on another label or on a line; of parts that one part is made of, its own line may be
# on its label. The ascenders and descenders of a line of text are empty but for few letters.
_FIND_LABELS = r"""
const wrong = [];
for (const svg of document.querySelectorAll('svg.figure')) {
  if (!svg.getClientRects().length) continue;
  const frame = svg.getBoundingClientRect(), scale = frame.width / svg.viewBox.baseVal.width;
  const say = (...words) => wrong.push([svg.querySelector('title').id, ...words].join(': '));
  const upright = text => !text.getAttribute('transform') && text.textContent.trim();
  const labels = [...svg.querySelectorAll('text')].filter(upright).map(text => {
    const box = text.getBoundingClientRect(), edge = 0.18 * box.height;
    const size = parseFloat(getComputedStyle(text).fontSize);
    const label = {text, words: text.textContent, left: box.left + 0.5, right: box.right - 0.5,
      top: box.top + edge, bottom: box.bottom - edge};
    if (size * scale < 10.99) say('small', label.words);
    const fits = box.left >= frame.left - 1 && box.right <= frame.right + 1 && label.bottom <= frame.bottom;
    if (!fits) say('cut off', label.words);
    return label;
  });
  labels.sort((one, other) => one.left - other.left);
  labels.forEach((one, i) => {
    for (const other of labels.slice(i + 1)) {
      if (other.left > one.right) break;
      if (one.top < other.bottom && other.top < one.bottom) say('on a label', one.words, other.words);
    }
  });
  for (const line of svg.querySelectorAll('.wire, .cross, .casing, .curve, .rule, .axis, .ring')) {
    const to = line.getScreenCTM(), own = line.closest('.item'), length = line.getTotalLength();
    for (let at = 0; at <= length; at += 2) {
      const point = line.getPointAtLength(at), x = point.x * to.a + to.e, y = point.y * to.d + to.f;
      const hit = labels.find(one => one.left < x && x < one.right && one.top < y && y < one.bottom);
      if (hit && !own?.contains(hit.text)) { say('on a line', hit.words, line.getAttribute('class')); break; }
    }
  }
}
for (const place of document.querySelectorAll('.scroll'))
  if ((innerWidth < 700 || innerWidth >= 1240) && place.scrollWidth > place.clientWidth
    && !place.querySelector('[id^=cut-whole]'))  // the whole map of a model whose layers are folded in the other one
    wrong.push((place.querySelector('title')?.id ?? place.ariaLabel) + ': cut off by its card');
if (document.documentElement.scrollWidth > innerWidth) wrong.push('the page is wider than its window');
return wrong;
"""

_RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ['violations']}).then(result => done(result.violations
  .filter(one => ['serious', 'critical'].includes(one.impact))
  .map(one => one.id + ': ' + one.nodes.slice(0, 3).map(node => node.html.slice(0, 150)).join(' | '))), done);
"""


def find_label_faults(browser: Browser) -> list[str]:
    """Return which labels of the pictures of a page that are shown cannot be read, and whether the page is too wide."""
    found: list[str] = browser.run(_FIND_LABELS)
    return found


def find_axe_violations(browser: Browser) -> Any:
    """Return what axe-core finds of serious and critical kind. The test is skipped where it is not installed."""
    browser.run(read_axe())
    return browser.call("execute/async", script=_RUN_AXE, args=[])


def read_axe() -> str:
    """Return axe-core, as a package for another driver of browsers brings it."""
    package = find_spec("axe_playwright_python")
    if package is None or package.origin is None:
        pytest.skip("needs axe-core: pip install --no-deps axe-playwright-python")
    return (Path(package.origin).parent / "axe.min.js").read_text(encoding="utf-8")
